"""Connections and descriptors of the server's process, under any way of starting uvicorn.

An application sees a connection when its request has arrived. So the limits of those that send
nothing, or half a request, are set where uvicorn makes its protocols: the application's lifespan
hands it uvicorn's configuration. Under another server, only the checks of the application hold.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import resource
import threading
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from env.server.door.logs import limit_repeats
from env.server.door.protocol import MeasuredFrames, WholeBodies, raise_descriptors

logger = logging.getLogger(__name__)

_REQUEST_S = 10.0
"""Seconds that a connection may be open without a request."""
_REFUSAL_S = 1.0
"""Seconds for the first bytes of a connection that is refused."""
_HANDSHAKE_S = 100.0
"""Seconds after which a connection never arrives: asyncio ends a TLS handshake sooner."""
_WAITING = 2048
"""Connections without a request, as many as uvicorn accepts at once; the oldest make room."""
_SPARE = 8
"""Descriptors that are kept free for the sandbox.

`capacity.py` leaves more than these when all sessions play, so that a new client reads why the
server refuses it.
"""
_UNSENT_BYTES, _UNSENT_MOST = 32 << 20, 128 << 20
"""Limits of answers that clients have not read, of all connections together.

Beyond the first, those that read nothing are closed; beyond the second, the largest.
"""
_UNREAD_S = 10.0
"""Seconds without progress after which a client counts as one that reads nothing."""
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: 51\r\n"
    b"Connection: close\r\n\r\nthis server has no free descriptor; try again later"
)
_TRIM_S = 5.0
"""Seconds after which memory that messages took goes back to the system."""
_ARENAS = 2
"""Heaps of the C library; with one a thread, freed memory would lie in all of them."""
_M_ARENA_MAX = -8
_PATIENCE_S = {"ws_ping_interval": 30.0, "ws_ping_timeout": 300.0}
"""Least times of pings: a policy that uses every core may answer one late."""
_OUT_OF_DESCRIPTORS = "socket.accept() out of system resource"


class Connections:
    """Closes connections that send no request.

    Args:
        message_bytes: limit of one WebSocket message.
        request_s: seconds that a connection may be open without a request.
    """

    def __init__(self, message_bytes: int, request_s: float = _REQUEST_S) -> None:
        self._message_bytes = message_bytes
        self._request_s = request_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._live: set[Any] = set()
        """The protocols of uvicorn, one a connection."""
        self._waiting: dict[Any, float] = {}
        """Since when a protocol waits for a request or for its end, the oldest first."""
        self._unread: dict[Any, tuple[int, float]] = {}
        """Least number of unread bytes of a connection, and since when."""
        self._relieved = 0.0

    def relieve(self) -> None:
        """Close the older half of the connections without a request.

        Call it in any thread but the loop's, after EMFILE, and try again. It returns when their
        descriptors are free, after a second at most.
        """
        loop, free = self._loop, threading.Event()
        if loop is None:
            return

        def drop() -> None:
            self._drop_half()
            loop.call_soon(free.set)  # after the ends of the connections

        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(drop)
            free.wait(1.0)

    def limit(self, config: Any) -> None:
        """Set the limits in uvicorn's configuration, before it accepts connections."""
        config.ws_max_size = min(config.ws_max_size, self._message_bytes)
        # One machine gains nothing by compression; a bomb unpacks to the limit each time.
        config.ws_per_message_deflate = False
        for name, least in _PATIENCE_S.items():
            if (given := getattr(config, name)) is not None:
                setattr(config, name, max(given, least))
        self._request_s = max(self._request_s, config.timeout_keep_alive)

        def protocol(**arguments: Any) -> Any:
            self._live = arguments["server_state"].connections
            few = _few_descriptors()
            if (few or len(self._waiting) >= _WAITING) and not self._drop(1) and few:
                return _Refusal()
            made = WholeBodies(**arguments)
            self._waiting[made] = self._now()
            return made

        config.http_protocol_class = protocol
        config.ws_protocol_class = MeasuredFrames

    async def watch(self) -> None:
        """Close late connections, once a second, until cancelled."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_error)
        with suppress(AttributeError):  # a C library without it
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
        gc.freeze()  # no collection looks at what the start has loaded
        trimmed = self._now()
        while True:
            await asyncio.sleep(min(1.0, self._request_s / 2))
            self._tick()
            if self._now() - trimmed > _TRIM_S:
                trimmed = self._now()
                _trim()

    def _tick(self) -> None:
        self._note()
        latest = self._now() - self._request_s
        for protocol in list(self._live):
            if self._waiting.get(protocol, latest) < latest:
                protocol.abort()
        self._drop_unread()
        if _few_descriptors():
            self._drop_half()

    def _drop_unread(self) -> None:
        """Close connections with unread answers until the rest is below the limit.

        A client that reads slowly makes progress, and loses its episode only to the second limit.
        """
        sizes = {protocol: protocol.transport.get_write_buffer_size() for protocol in self._live}
        now, before, self._unread = self._now(), self._unread, {}
        for protocol, size in sizes.items():
            if size:
                least, since = before.get(protocol, (size, now))
                self._unread[protocol] = (size, now) if size < least else (least, since)
        unsent = sum(sizes.values())
        for protocol in sorted(self._unread, key=sizes.__getitem__, reverse=True):
            stuck = now - self._unread[protocol][1] >= _UNREAD_S
            if unsent > (_UNSENT_BYTES if stuck else _UNSENT_MOST):
                unsent -= sizes[protocol]
                protocol.abort()

    def _note(self) -> None:
        """Bring the list of waiting connections up to date."""
        live, now = self._live, self._now()
        self._waiting = {
            protocol: since
            for protocol, since in self._waiting.items()
            if (protocol in live and protocol.waits())
            or (_arrives(protocol) and now - since < _HANDSHAKE_S)
        }
        for protocol in live:
            if protocol.waits():
                self._waiting.setdefault(protocol, now)

    def _drop(self, count: int) -> int:
        """Close the connections that have waited longest; return how many."""
        dropped = 0
        for protocol in list(self._waiting):
            if dropped == count:
                break
            if not _arrives(protocol):
                del self._waiting[protocol]
                if protocol in self._live and protocol.waits():
                    protocol.abort(_FULL)
                    dropped += 1
        return dropped

    def _drop_half(self) -> None:
        self._note()
        self._drop(max(_SPARE, len(self._waiting) // 2))

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error of the loop; asyncio reports 2,048 for one failed accept."""
        if context.get("message") == _OUT_OF_DESCRIPTORS:
            if self._now() - self._relieved < 1.0:
                return
            self._relieved = self._now()
            self._drop_half()
        loop.default_exception_handler(context)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _trim() -> None:
    gc.collect()
    with suppress(AttributeError):  # a C library without it
        ctypes.CDLL(None).malloc_trim(0)


class _Refusal(asyncio.Protocol):
    """A connection that there is no descriptor for: any request is answered with the reason."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the request; after an answer that comes sooner, the kernel drops both."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        asyncio.get_running_loop().call_later(_REFUSAL_S, transport.close)

    def data_received(self, data: bytes) -> None:
        """Answer the first part of the request."""
        if not self._transport.is_closing():
            self._transport.write(_FULL)
            self._transport.close()


class ServerLimits:
    """The application that a server runs; sets the process's limits when it starts.

    Args:
        app: application with the routes.
        connections: connections of this process.
    """

    def __init__(self, app: ASGIApp, connections: Connections) -> None:
        self._app = app
        self._connections = connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI defines it."""
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        raise_descriptors()
        limit_repeats()
        config = getattr(getattr(receive, "__self__", None), "config", None)
        if hasattr(config, "http_protocol_class"):
            self._connections.limit(config)
        else:
            logger.warning("this server is not uvicorn: idle connections have no time limit")
        watch = asyncio.create_task(self._connections.watch())
        try:
            await self._app(scope, receive, send)
        finally:
            watch.cancel()


def _arrives(protocol: Any) -> bool:
    """Whether uvicorn has not yet seen the connection."""
    return protocol.transport is None


def _few_descriptors() -> bool:
    """Whether the lowest free descriptor is near the limit."""
    try:
        lowest = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    os.close(lowest)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit >= 0 and lowest >= limit - _SPARE
