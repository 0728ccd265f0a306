"""Limits of HTTP requests: structure of a body, number and rate of requests, and MCP.

`POST /mcp` is answered here: this environment has no MCP, and OpenEnv's route makes sessions.
Neighbour: `env/web/bodies.py` limits size and time of a body.
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
from env.web.bodies import BODY_S, CLOSE, BodyReader, BodyRefused, replayed

_BODY_BYTES, _MCP_BYTES = 256_000, 4_096
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


class RequestLimits:
    """Middleware for HTTP; other connections pass.

    Args:
        app: application behind it.
        body_s: seconds for a whole body.
        per_s: POST requests a second.
    """

    def __init__(
        self,
        app: ASGIApp,
        body_s: float = BODY_S,
        per_s: float = _PER_S,
    ) -> None:
        self._app = app
        self._interval_s = 1 / per_s
        self._next_s = 0.0
        self._bodies = BodyReader(body_s)
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
                raise BodyRefused(414, f"a path has at most {_PATH_CHARS} characters")
            limit = _MCP_BYTES if is_mcp else _BODY_BYTES
            body = await self._bodies.read(scope, receive, limit)
            if body and not is_mcp:
                _check(path, body)
        except BodyRefused as error:
            headers = CLOSE if error.status != 422 else {}
            answer: Response = JSONResponse({"detail": error.detail}, error.status, headers)
            if is_mcp:
                answer = _no_mcp(b"", headers)
        else:
            if not is_mcp:
                await self._handle(scope, replayed(body, receive), send, bool(body))
                return
            answer = _no_mcp(body, {})
        await answer(scope, receive, send)

    async def _pace(self) -> None:
        now = asyncio.get_running_loop().time()
        self._next_s = max(self._next_s, now - _BURST * self._interval_s)
        late = self._next_s - now
        if late > _PACED_S:
            raise BodyRefused(503, "too many requests a second; try again later")
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
                await JSONResponse(detail, 503, CLOSE)(scope, receive, send)
                return

            async def answer(message: Message) -> None:
                await place.aclose()
                await send(message)

            await self._app(scope, receive, answer)


async def short_errors(_: Request, error: Exception) -> JSONResponse:
    """Answer of a route whose arguments are wrong, without the input."""
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"detail": short(error.errors())}, 422)


def _check(path: str, body: bytes) -> None:
    """Raise `BodyRefused` unless routes may read the body."""
    try:
        value, reason = parsed(body.decode())
    except UnicodeDecodeError:
        value, reason = {}, "a body is UTF-8"
    if reason is not None:
        raise BodyRefused(422, reason)
    if path == "/step" and (errors := action_errors(value.get("action"))):
        raise BodyRefused(422, errors)


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
