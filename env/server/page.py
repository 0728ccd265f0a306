"""The page at `/`: a visitor plays an episode by hand, in the browser.

Three static files. The page is a client of `/ws` and knows no more than any other client: gold
stays on the server, and the reward comes with the end. Neighbours: `page/` contains the files,
`app.py` serves them.
"""

from __future__ import annotations

from pathlib import Path

from starlette.responses import FileResponse
from starlette.routing import Route

FOLDER = Path(__file__).resolve().parent / "page"
FILES = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
_HEADERS = {
    # Only its own files and its own socket are allowed; papers are shown as text, never as markup.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def routes() -> list[Route]:
    """Routes of the page and its files."""
    return [_route(path, name, kind) for path, (name, kind) in FILES.items()]


def _route(path: str, name: str, kind: str) -> Route:
    def answer(_: object) -> FileResponse:
        return FileResponse(FOLDER / name, media_type=kind, headers=_HEADERS)

    return Route(path, answer, methods=["GET"])
