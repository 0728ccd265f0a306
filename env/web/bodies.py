"""Bodies of HTTP requests: their size, their time, and how many arrive at the same time.

A body is read whole, checked, and then handed on, so that no route waits for a slow client.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Message, Receive, Scope

BODY_S = 10.0
"""Seconds for a whole body."""
_BODIES = 16
"""Requests whose body arrives at the same time.

One body more, and the one that has taken longest is given up.
"""
CLOSE = {"connection": "close"}


class BodyRefused(Exception):
    """A body that is not handed on.

    Args:
        status: HTTP status of the answer.
        detail: reason, for the client.
    """

    def __init__(self, status: int, detail: Any) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class BodyReader:
    """Reads the bodies of one server.

    Args:
        body_s: seconds for a whole body.
    """

    def __init__(self, body_s: float = BODY_S) -> None:
        self._body_s = body_s
        self._bodies: list[asyncio.Timeout] = []
        """Time limits of the bodies that arrive, the oldest first."""

    async def read(self, scope: Scope, receive: Receive, limit: int) -> bytes:
        """The whole body; empty if the request has none.

        Args:
            scope: request.
            receive: its messages.
            limit: most bytes.

        Raises:
            BodyRefused: it is too long (413), or does not arrive in time (408).
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
            raise BodyRefused(
                408, f"a body arrives within {self._body_s:g} s, sooner if many do"
            ) from None
        finally:
            if time_limit in self._bodies:
                self._bodies.remove(time_limit)
        if size > limit:
            raise BodyRefused(413, f"a body has at most {limit} bytes")
        return body


def replayed(body: bytes, receive: Receive) -> Receive:
    """Return the body once, then what the client sends, which is its end."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay
