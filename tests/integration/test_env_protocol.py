"""What the servers' HTTP protocol refuses before it costs anything, over the wire."""

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread
from typing import Any

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from env.server.door.protocol import MeasuredFrames, WholeBodies

UPGRADE = b"Connection: upgrade\r\nUpgrade: websocket"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = await Request(scope, receive).body()
    await PlainTextResponse(f"{len(body)} bytes")(scope, receive, send)


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    options = {"http": WholeBodies, "ws": MeasuredFrames, "lifespan": "off"}
    server = uvicorn.Server(uvicorn.Config(echo, **options, log_level="critical"))
    bound = socket.create_server(("127.0.0.1", 0))
    thread = Thread(target=server.run, args=([bound],), daemon=True)
    thread.start()
    yield bound.getsockname()
    server.should_exit = True
    thread.join(10)


def answer(address: tuple[str, int], request: bytes) -> bytes:
    with socket.create_connection(address, timeout=10) as client:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        told = b""
        while part := client.recv(65536):
            told += part
    return told


@pytest.mark.parametrize(
    "request_", [CHUNKED, CHUNKED.replace(b"chunked", b"gzip, chunked"), CHUNKED + b"1\r\na\r\n"]
)
def test_chunks_are_refused_with_the_way_out(address: tuple[str, int], request_: bytes) -> None:
    head, _, body = answer(address, request_).partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.1 411 ", b"HTTP/1.1 501 ", b"HTTP/1.1 400 "))
    if b"411" in head:
        assert b"Content-Length: %d" % len(body) in head
        assert b"Content-Length" in body


def test_no_chunk_is_parsed(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    parse = WholeBodies.handle_events
    monkeypatch.setattr(WholeBodies, "handle_events", lambda self: (seen.append(1), parse(self))[1])
    with socket.create_connection(address, timeout=10) as client:
        client.sendall(CHUNKED)
        assert client.recv(4096).startswith(b"HTTP/1.1 411 ")
        time.sleep(0.1)
        with suppress(OSError):  # closed, as it should be
            client.sendall(b"1\r\na\r\n" * 100_000)
    assert len(seen) == 1


def test_whole_bodies_arrive_and_a_connection_stays_open(address, monkeypatch):
    connected = WholeBodies.connection_made
    delays: list[int] = []

    def made(self: WholeBodies, transport: Any) -> None:
        connected(self, transport)
        option = socket.IPPROTO_TCP, socket.TCP_NODELAY
        delays.append(transport.get_extra_info("socket").getsockopt(*option))

    monkeypatch.setattr(WholeBodies, "connection_made", made)
    request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
    with socket.create_connection(address, timeout=10) as client:
        for _ in range(2):
            client.sendall(request)
            told = b""
            while b"3 bytes" not in told:
                told += client.recv(4096)
            assert told.startswith(b"HTTP/1.1 200 OK")
    assert 0 not in (delays or [0])  # else an answer on an open connection takes 40 ms
    assert answer(address, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_a_socket_is_read_in_small_parts(address, monkeypatch):
    made, read = MeasuredFrames.connection_made, []
    monkeypatch.setattr(
        MeasuredFrames, "connection_made", lambda one, to: (made(one, to), read.append(to.max_size))
    )
    answer(address, CHUNKED.replace(b"Transfer-Encoding: chunked", UPGRADE))
    assert read == [2048]


def test_headers_are_no_longer_than_uvicorn_allows(address: tuple[str, int]) -> None:
    request = b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 40_000
    assert answer(address, request).startswith(b"HTTP/1.1 400 ")
