"""The server behind the page of `rlm chat`: documents, and answers as server-sent events.

`POST /api/ask` streams the events of `agent/rollouts/progress.py`, then one `answer` or `error`.
The page is the folder `page/`. Documents and model output are hostile: they travel as JSON or plain
text, and the page sets them as text. Neighbours: `chat.py` is the command, `question_queue.py`
takes the questions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from assistant.question_queue import EventStream, QuestionQueue, QueueFullError
from env.web.bodies import BodyLimit
from env.web.origin import SameOrigin

FOLDER = Path(__file__).resolve().parent / "page"
FILES = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
BODY_BYTES = 256_000
HEADERS = {
    # Only its own files are allowed, and no other page may show or load any of it.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Chat:
    """A model and the documents that it is asked about, for one page.

    Args:
        queue: takes the questions.
        documents: text by name.
    """

    def __init__(self, queue: QuestionQueue, documents: Mapping[str, str]) -> None:
        self._queue, self._documents = queue, documents

    def application(self) -> ASGIApp:
        """The page and its API, for pages of this machine alone."""
        routes = [_file(path, name, kind) for path, (name, kind) in FILES.items()]
        routes += [
            Route("/api/documents", self.list_documents, methods=["GET"]),
            Route("/api/documents/{name:path}", self.read_document, methods=["GET"]),
            Route("/api/ask", self.answer, methods=["POST"]),
        ]
        limits = [
            Middleware(SameOrigin),
            Middleware(BodyLimit, limit=BODY_BYTES, refuse=_refusal),
        ]
        return Starlette(routes=routes, middleware=limits)

    async def list_documents(self, _: Request) -> Response:
        """The model, whether it reads, and the documents with their sizes in characters."""
        sizes = [{"name": name, "size": len(text)} for name, text in self._documents.items()]
        model = self._queue.model
        body = {"model": model.name, "reads": model.reads, "documents": sizes}
        return JSONResponse(body, headers=HEADERS)

    async def read_document(self, request: Request) -> Response:
        """Text of a document."""
        text = self._documents.get(request.path_params["name"])
        if text is None:
            return _refusal(404, "no document of that name was read")
        return PlainTextResponse(text, headers=HEADERS)

    async def answer(self, request: Request) -> Response:
        """Events of one question; it is given up when the client leaves."""
        try:
            text = (await request.json())["question"]
        except (ValueError, RecursionError, KeyError, TypeError):
            text = None
        if not isinstance(text, str):
            return _refusal(422, 'the body is JSON such as {"question": "Who pays the rent?"}')
        try:
            question = self._queue.take(text, self._documents)
        except QueueFullError as error:
            return _refusal(429, error)
        return EventStream(question, lambda event: f"data: {json.dumps(event)}\n\n", HEADERS)


def _file(path: str, name: str, kind: str) -> Route:
    content = (FOLDER / name).read_bytes()

    async def answer(_: Request) -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return Route(path, answer, methods=["GET"])


def _refusal(status: int, reason: Any) -> Response:
    return PlainTextResponse(f"{reason}\n", status, headers=HEADERS)
