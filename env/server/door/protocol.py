"""uvicorn's protocols with limits; what depends on their inside is here.

h11 parses each chunk in Python, before any limit of the application applies: a few connections that
send chunks of one byte would make all others wait for seconds. No client of ours sends any.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from contextlib import suppress
from typing import Any

import h11
from h11._connection import DEFAULT_MAX_INCOMPLETE_EVENT_SIZE  # uvicorn's own default
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

_READ_BYTES = 64 << 10
"""Bytes that are parsed before other connections have their turn."""
_FRAMES_BYTES = 2 << 10
"""The same, once a connection is a WebSocket, whose empty frames have six bytes."""
_MESSAGES, _FRAGMENTS = 100, 1000
"""Messages of one client that wait, and parts of one message."""
CONTROLS_PER_S = 32
"""Pings and pongs of a connection in a second; a client of ours sends one in 30 seconds."""
_REFUSED = (
    b"HTTP/1.1 411 Length Required\r\nContent-Type: text/plain\r\nContent-Length: 53\r\n"
    b"Connection: close\r\n\r\nsend a body with Content-Length; chunks are not taken"
)


class _Connection(h11.Connection):
    """Ends at a request with a chunked body."""

    chunked = False

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
        if self.chunked:
            raise h11.RemoteProtocolError("a chunked body")
        return event


class MeasuredFrames(WebSocketsSansIOProtocol):
    """A WebSocket connection that ends when it sends control frames or messages without measure.

    Control frames are parsed in Python and answered, and no limit of the application sees them. Of
    messages, a client of ours sends the next one after the answer.
    """

    def connection_made(self, transport: Any) -> None:
        """Begin; others have their turn after each small part."""
        super().connection_made(transport)
        with suppress(AttributeError):  # another event loop
            transport.max_size = _FRAMES_BYTES
        self._second, self._controls = 0, 0

    def waits(self) -> bool:
        """Whether it closes. The guard limits the answers of one that doesn't."""
        return self.transport.is_closing() or self.close_sent

    def abort(self, _answer: bytes = b"") -> None:
        """Close it, and forget its messages, which a session would still read."""
        while not self.queue.empty():
            self.queue.get_nowait()
        self.transport.abort()

    def handle_ping(self) -> None:
        """Answer a ping, unless there were too many."""
        if self._are_few():
            super().handle_ping()

    def handle_pong(self, event: Any) -> None:
        """Note a pong, unless there were too many."""
        if self._are_few():
            super().handle_pong(event)

    def handle_cont(self, event: Any) -> None:
        """Add a part to a message, unless it has too many."""
        super().handle_cont(event)
        if len(self.frames) > _FRAGMENTS:
            self.abort()

    def send_receive_event_to_app(self) -> None:
        """Let a message wait for its session, unless too many do."""
        if not self.transport.is_closing():
            super().send_receive_event_to_app()
        if self.queue.qsize() > _MESSAGES:
            self.abort()

    def _are_few(self) -> bool:
        """Count a frame; end the connection, and write to it no more, if there are too many."""
        now = int(self.loop.time())
        self._controls = self._controls + 1 if now == self._second else 1
        self._second = now
        if self._controls > CONTROLS_PER_S:
            self.transport.abort()
        return self._controls <= CONTROLS_PER_S


class WholeBodies(H11Protocol):
    """Answers a request with a chunked body with 411, before it parses the first chunk."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        most = self.config.h11_max_incomplete_event_size or DEFAULT_MAX_INCOMPLETE_EVENT_SIZE
        self.conn: _Connection = _Connection(h11.SERVER, most)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin. Small answers leave at once: asyncio sees to that for its own sockets alone."""
        super().connection_made(transport)  # type: ignore[arg-type]
        with suppress(AttributeError, OSError):  # another event loop, a socket of a file
            transport.max_size = _READ_BYTES  # type: ignore[attr-defined]
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def waits(self) -> bool:
        """Whether no request is under way, or its client doesn't read the answer."""
        idle = self.cycle is None or self.cycle.response_complete
        return idle or self.flow.write_paused or self.transport.is_closing()

    def abort(self, answer: bytes = b"") -> None:
        """Close it at once; a request that may be on its way gets this answer."""
        if self.cycle is None:
            self.transport.write(answer)
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that cannot be parsed, or whose body is chunked."""
        if not self.conn.chunked:
            super().send_400_response(msg)
            return
        self.transport.write(_REFUSED)
        self.transport.close()


def raise_descriptors() -> None:
    """Raise the soft limit of open files to the hard one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):  # macOS refuses "unlimited"
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
