"""Limits of HTTP requests: structure of a body, number and rate of requests, and MCP.

`POST /mcp` is answered here: this environment has no MCP, and OpenEnv's route makes sessions.
A body is read whole, checked, and then handed on, so that no route waits for a slow client.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from env.server.door.messages import action_errors, parsed, short

_BODY_BYTES, _MCP_BYTES = 256_000, 4_096
_BODY_S = 10.0
"""Seconds for a whole body."""
_BODIES = 16
"""Requests whose body arrives at the same time.

One body more, and the one that has taken longest is given up.
"""
_CLOSE = {"connection": "close"}
_PATH_CHARS = 200
"""Limit of a path; OpenEnv's routes of tasks repeat a part of it."""
_WAIT_S = 2.0
"""Seconds that a request without a body waits for its route; many clients begin at once."""
_HANDLED = 64
"""Requests that a route works on at the same time.

A route has done its work when its answer begins: a client that reads nothing blocks no other.
"""
_PER_S, _BURST, _PACED_S = 20.0, 64, 2.0
"""POST requests a second, those that come at once before it holds, and seconds of a delay.

Clients play over a WebSocket and need no POST. A flood of them waits here, at no cost.
"""


class _Refused(Exception):
    """A request that is not handed on.

    Args:
        status: HTTP status of the answer.
        detail: reason, for the client.
    """

    def __init__(self, status: int, detail: Any) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class RequestLimits:
    """Middleware for HTTP; other connections pass.

    Args:
        app: application behind it.
        body_s: seconds for a whole body.
        per_s: POST requests a second.
    """

    def __init__(self, app: ASGIApp, body_s: float = _BODY_S, per_s: float = _PER_S) -> None:
        self._app = app
        self._interval_s = 1 / per_s
        self._next_s = 0.0
        self._body_s = body_s
        self._bodies: list[asyncio.Timeout] = []
        """Time limits of the bodies that arrive, the oldest first."""
        self._handled = asyncio.Semaphore(_HANDLED)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI defines it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        is_mcp = path == "/mcp" and scope["method"] == "POST"
        try:
            if scope["method"] == "POST":
                await self._pace()
            if len(path) > _PATH_CHARS:
                raise _Refused(414, f"a path has at most {_PATH_CHARS} characters")
            body = await self._read(scope, receive, _MCP_BYTES if is_mcp else _BODY_BYTES)
            if body and not is_mcp:
                _check(path, body)
        except _Refused as error:
            headers = _CLOSE if error.status != 422 else {}
            answer: Response = JSONResponse({"detail": error.detail}, error.status, headers)
            if is_mcp:
                answer = _no_mcp(b"", headers)
        else:
            if not is_mcp:
                await self._handle(scope, _replayed(body, receive), send, bool(body))
                return
            answer = _no_mcp(body, {})
        await answer(scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive, limit: int) -> bytes:
        """The whole body; empty if the request has none.

        Args:
            scope: request.
            receive: its messages.
            limit: most bytes.

        Raises:
            _Refused: it is too long (413), or does not arrive in time (408).
        """
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        if length == b"0" and b"transfer-encoding" not in headers:
            return b""
        if len(self._bodies) >= _BODIES:
            oldest = self._bodies.pop(0)
            if not oldest.expired():
                oldest.reschedule(0.0)
        body = b""
        try:
            async with asyncio.timeout(self._body_s) as time_limit:
                self._bodies.append(time_limit)
                more, size = True, int(length)
                while more and size <= limit:
                    message = await receive()
                    body += message.get("body", b"")
                    more, size = message.get("more_body", False), len(body)
        except TimeoutError:
            raise _Refused(
                408, f"a body arrives within {self._body_s:g} s, sooner if many do"
            ) from None
        finally:
            if time_limit in self._bodies:
                self._bodies.remove(time_limit)
        if size > limit:
            raise _Refused(413, f"a body has at most {limit} bytes")
        return body

    async def _pace(self) -> None:
        now = asyncio.get_running_loop().time()
        self._next_s = max(self._next_s, now - _BURST * self._interval_s)
        late = self._next_s - now
        if late > _PACED_S:
            raise _Refused(503, "too many requests a second; try again later")
        self._next_s += self._interval_s
        if late > 0:
            await asyncio.sleep(late)

    async def _handle(self, scope: Scope, receive: Receive, send: Send, large: bool) -> None:
        async with AsyncExitStack() as place:
            try:
                async with asyncio.timeout(0 if large else _WAIT_S):
                    await place.enter_async_context(self._handled)
            except TimeoutError:
                detail = {"detail": "too many requests at the same time; try again later"}
                await JSONResponse(detail, 503, _CLOSE)(scope, receive, send)
                return

            async def answer(message: Message) -> None:
                await place.aclose()
                await send(message)

            await self._app(scope, receive, answer)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return the body once, then what the client sends, which is its end."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay


async def short_errors(_: Request, error: Exception) -> JSONResponse:
    """Answer of a route whose arguments are wrong, without the input."""
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"detail": short(error.errors())}, 422)


def _check(path: str, body: bytes) -> None:
    """Raise `_Refused` unless routes may read the body."""
    try:
        value, reason = parsed(body.decode())
    except UnicodeDecodeError:
        value, reason = {}, "a body is UTF-8"
    if reason is not None:
        raise _Refused(422, reason)
    if path == "/step" and (errors := action_errors(value.get("action"))):
        raise _Refused(422, errors)


def _no_mcp(body: bytes, headers: dict[str, str]) -> Response:
    """An error of JSON-RPC 2.0, for any request."""
    number: Any = None
    error = {"code": -32601, "message": "this environment has no MCP"}
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        error = {"code": -32700, "message": f"a request is JSON of at most {_MCP_BYTES} bytes"}
    else:
        number = request.get("id") if isinstance(request, dict) else None
    answer = {"jsonrpc": "2.0", "id": number if isinstance(number, int | str) else None}
    text = json.dumps(answer | {"error": error})
    return Response(text, media_type="application/json", headers=headers)
