"""The WebSocket `/ws`: who gets a session, how long it may be silent, which messages pass.

The guard is between the connection and OpenEnv's loop. It answers a refused message itself, and the
session continues. A repeated `state` request gets the cached answer until the next step. The guard
closes a session that is idle, and refuses one that the server has no place for. Errors that contain
the text of an exception are logged, and the client receives a fixed sentence. Neighbours:
`messages.py` checks a message, `seats.py` counts the sessions.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from env.models import WSErrorCode
from env.server.door.messages import refusal
from env.server.door.seats import Seats, network

logger = logging.getLogger(__name__)

INTERNAL = "internal error of the server"
IDLE = "the session was closed, idle for too long"
NO_ATTACHING = "a session cannot be shared: connect to /ws without session_id"

LEAVES: ContextVar[list[Callable[[], None]] | None] = ContextVar("leaves", default=None)
"""Functions that run in a thread when the client of this connection leaves during a step."""

_OWN_WORDS = (WSErrorCode.EXECUTION_ERROR, WSErrorCode.SESSION_ERROR, WSErrorCode.FACTORY_ERROR)
"""Errors whose message is `str(exception)`."""
_LARGE = 100_000
"""Characters of a message that is read in a thread."""
_AHEAD = 32
"""Messages that a client may send before the answer to an earlier one. OpenEnv's loop reads them
without a pause for others."""
_STATE = '{"type":"state",'
_PLAYS = ('"refused":null', '"done":false}}')
"""Part and end of an observation of an episode that is played; quotes in texts are escaped."""
_GOING_AWAY, _VIOLATION, _TOO_BIG, _TRY_AGAIN = 1001, 1008, 1009, 1013


class Guard:
    """Middleware for WebSockets; other requests pass.

    Args:
        app: application behind the guard.
        seats: sessions that the server can play at the same time.
        idle_s: seconds without a message after which a session ends.
        message_bytes: limit of one message, where the server did not enforce it.
    """

    def __init__(self, app: ASGIApp, seats: Seats, idle_s: float, message_bytes: int) -> None:
        self._app = app
        self.seats, self.idle_s, self.message_bytes = seats, idle_s, message_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI defines it."""
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        if "session_id" in parse_qs(scope["query_string"].decode("latin-1"), True):
            await _refuse(receive, send, WSErrorCode.SESSION_ERROR, NO_ATTACHING, _VIOLATION)
            return
        session = _Session(self, receive, send, network((scope.get("client") or ("",))[0]))
        if not await self.seats.take(session):
            reason = f"{self.seats.rule}; try again later"
            await _refuse(receive, send, WSErrorCode.CAPACITY_REACHED, reason, _TRY_AGAIN)
            return
        LEAVES.set(session.leaves)
        watch = asyncio.create_task(session.watch())
        try:
            await self._app(scope, session.receive, session.send)
        finally:
            watch.cancel()
            self.seats.leave(session)


class _Session:
    """One connection, as OpenEnv's loop sees it."""

    def __init__(self, guard: Guard, receive: Receive, send: Send, address: str) -> None:
        self._receive, self._send, self.address = receive, send, address
        self._seats, self._idle_s = guard.seats, guard.idle_s
        self._message_bytes = guard.message_bytes
        self.leaves: list[Callable[[], None]] = []
        self._ahead: asyncio.Queue[Message] = asyncio.Queue()
        self._gone = False
        self._state: Message | None = None
        """Of a wide tree it takes milliseconds to write, so this answers until the next step."""
        self._waiting: asyncio.Timeout | None = None
        """Set while the session waits for its client, so never during a step."""

    def end(self) -> bool:
        """Close the session if it waits for its client; return whether it does."""
        if self._waiting is None or self._waiting.expired():
            return False
        self._waiting.reschedule(asyncio.get_running_loop().time())
        return True

    async def watch(self) -> None:
        """Read ahead until the client has left, so that no step goes on without it."""
        size, flood = 0, False
        message: Message = {"type": "websocket.connect"}
        while message["type"] != "websocket.disconnect" and not flood:
            message = await self._receive()
            size = len(message.get("text") or "") + (size if self._ahead.qsize() else 0)
            flood = size > 2 * self._message_bytes or self._ahead.qsize() >= _AHEAD
            self._ahead.put_nowait(message)
        if self._waiting is None:
            for leave in self.leaves:
                threading.Thread(target=leave, daemon=True).start()
        if flood:
            await self._close(_VIOLATION, "too many messages wait for an answer")

    async def receive(self) -> Message:
        """Return the next message that OpenEnv may read."""
        until = asyncio.get_running_loop().time() + self._idle_s
        while not self._gone:
            try:
                # The clock of the loop stops while a laptop sleeps, and nobody sets it.
                async with asyncio.timeout_at(until) as self._waiting:
                    message = await self._ahead.get()
            except TimeoutError:
                await self._close(_GOING_AWAY, IDLE)
                break
            finally:
                self._waiting = None
            if message["type"] != "websocket.receive":
                return message
            text = message.get("text")
            if text is not None and len(text) > self._message_bytes:
                await self._close(_TOO_BIG, f"a message has at most {self._message_bytes} bytes")
                break
            large = text is not None and len(text) > _LARGE
            refused = await asyncio.to_thread(refusal, text) if large else refusal(text)
            if refused is not None:
                await self.send({"type": "websocket.send", "text": _error(refused)})
            elif self._state and not large and json.loads(text or "")["type"] == "state":
                await self.send(self._state)
            else:
                self._state = None
                return message
        return {"type": "websocket.disconnect", "code": _GOING_AWAY}

    async def send(self, message: Message) -> None:
        """Send an answer; a client that takes none within the idle time is gone."""
        if self._gone:
            return
        text = message.get("text") or ""
        if text.startswith('{"type":"error"'):
            message = {**message, "text": _without_exception(text)}
        elif text.startswith(_STATE):
            self._state = message
        elif text.endswith(_PLAYS[1]) and _PLAYS[0] in text:
            self._seats.plays(self)
        try:
            async with asyncio.timeout(self._idle_s):
                await self._send(message)
        except (OSError, TimeoutError):
            self._gone = True

    async def _close(self, code: int, reason: str) -> None:
        await self.send({"type": "websocket.close", "code": code, "reason": reason})
        self._gone = True


async def _refuse(receive: Receive, send: Send, code: WSErrorCode, why: str, close: int) -> None:
    """Accept the connection, say why it gets no session, and close it."""
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "text": _error({"message": why, "code": code.value})})
    await send({"type": "websocket.close", "code": close, "reason": why[:120]})


def _error(data: dict[str, Any]) -> str:
    return json.dumps({"type": "error", "data": data}, separators=(",", ":"))


def _without_exception(text: str) -> str:
    data = json.loads(text)["data"]
    if data.get("code") not in _OWN_WORDS:
        return text
    logger.error("session failed: %.300r", data.get("message"))
    return _error({"message": INTERNAL, "code": data["code"]})
