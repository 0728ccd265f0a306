"""A small server that speaks as much of the Hub's HTTP as its real client asks for.

Data sets and models are named by what becomes of them: `org/good`, `org/gated`, `org/down`, ...
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

SHA = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_never_in_a_log"


class Hub(ThreadingHTTPServer):
    """Serves files of data sets and models.

    Args:
        files: for each of them its files by name.
    """

    daemon_threads = True

    def __init__(self, files: dict[str, dict[str, bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.asked: list[tuple[str, str, str | None]] = []
        self.failures = {"org/flaky": 2}
        """Requests of a data set that are answered with 503 before the first good answer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self._posted = self.rfile.read(length).decode()
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append((self.command, path, self.headers.get("Authorization")))
        rest_of_path = path.removeprefix("/api").removeprefix("/datasets").removeprefix("/models")
        parts = rest_of_path.strip("/").split("/")
        name, rest = "/".join(parts[:2]), parts[2:]
        authorized = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if name.startswith("org/gated") and not authorized:
            return self._refuse(401, "GatedRepo")
        if path.startswith("/api/") and self.server.failures.get(name, 0):
            self.server.failures[name] -= 1
            return self._refuse(503, None)
        if name not in self.server.files:
            return self._refuse(404 if authorized else 401, "RepoNotFound")
        files = self.server.files[name]
        if rest[:1] == ["resolve"]:
            if rest[1] not in ("main", SHA):
                return self._refuse(404, "RevisionNotFound")
            content = files.get("/".join(rest[2:]))
            if content is None:
                return self._refuse(404, "EntryNotFound")
            return self._send(content, body, etag=hashlib.sha1(content).hexdigest())
        if not path.startswith("/api/"):
            return self._refuse(404, None)
        return self._api(name, rest, body)

    def _api(self, name: str, rest: list[str], body: bool) -> None:
        files = self.server.files[name]
        if rest[:1] == ["revision"] and rest[1] not in ("main", SHA):
            return self._refuse(404, "RevisionNotFound")
        listed = [
            {"type": "file", "path": path, "size": len(content), "oid": "0" * 40}
            for path, content in files.items()
        ]
        if rest[:1] == ["tree"]:
            answer: Any = listed
        elif rest[:1] == ["paths-info"]:
            answer = [one for one in listed if str(one["path"]) in self._posted]
        else:
            siblings = [{"rfilename": path, "size": len(files[path])} for path in files]
            answer = {"id": name, "sha": SHA, "siblings": siblings, "private": False, "tags": []}
            if weights := files.get("model.safetensors"):
                header = json.loads(weights[8 : 8 + int.from_bytes(weights[:8], "little")])
                shapes = [header[key]["shape"] for key in header if key != "__metadata__"]
                total = sum(map(math.prod, shapes))
                answer |= {"safetensors": {"parameters": {"BF16": total}, "total": total}}
        return self._send(json.dumps(answer).encode(), body)

    def _send(self, content: bytes, body: bool, etag: str | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", SHA)
        if etag:
            self.send_header("ETag", f'"{etag}"')
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _refuse(self, status: int, code: str | None) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def serve(files: dict[str, dict[str, bytes]]) -> Iterator[Hub]:
    """A running hub."""
    hub = Hub(files)
    thread = Thread(target=hub.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
