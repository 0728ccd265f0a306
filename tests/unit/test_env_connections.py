"""Connections without a request: closed when late, the oldest first when they are too many."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from env.server.door import connections
from env.server.door.connections import Connections


class Fake:
    """A protocol of uvicorn and its transport."""

    def __init__(self, server_state: Any) -> None:
        self.transport: Any = self
        self.cycle: Any = None
        self.live = server_state.connections
        self.live.add(self)
        self.closing = False
        self.unsent = 0
        self.sent = b""

    def write(self, data: bytes) -> None:
        self.sent += data

    def abort(self) -> None:
        self.live.discard(self)

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return self.unsent


class Server:
    """As much of uvicorn as `Connections` uses."""

    def __init__(self, request_s: float = 0.1) -> None:
        self.state = SimpleNamespace(connections=set())
        self.config = SimpleNamespace(
            http_protocol_class=Fake,
            timeout_keep_alive=0,
            ws_max_size=16 << 20,
            ws_ping_interval=20.0,
            ws_ping_timeout=20.0,
            ws_per_message_deflate=True,
        )
        self.connections = Connections(1000, request_s)
        self.connections.limit(self.config)

    def accepts(self, count: int = 1) -> list[Any]:
        return [self.config.http_protocol_class(server_state=self.state) for _ in range(count)]

    def live(self, protocols: list[Any]) -> list[bool]:
        return [protocol in self.state.connections for protocol in protocols]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether descriptors are few, as the test says."""
    answer = [False]
    monkeypatch.setattr(connections, "_few_descriptors", lambda: answer[0])
    return answer


def test_sizes_are_set_in_uvicorns_configuration() -> None:
    config = Server().config
    assert config.ws_max_size == 1000
    assert not config.ws_per_message_deflate
    assert (config.ws_ping_interval, config.ws_ping_timeout) == (30.0, 300.0)


def test_late_connections_are_closed_and_busy_ones_are_not(few: list[bool]) -> None:
    async def story() -> list[bool]:
        server = Server()
        _, busy, answered, closing, refused, unread, socket = made = server.accepts(7)
        busy.cycle = unread.cycle = SimpleNamespace(response_complete=False)
        answered.cycle = SimpleNamespace(response_complete=True)
        del socket.cycle, closing.cycle, refused.cycle  # WebSockets
        closing.closing = refused.close_sent = True
        unread.flow = SimpleNamespace(write_paused=True)
        watch = asyncio.create_task(server.connections.watch())
        await asyncio.sleep(0.3)
        watch.cancel()
        return server.live(made)

    assert asyncio.run(story()) == [False, True, False, False, False, False, True]


def test_messages_that_wait_are_bounded_and_forgotten(few: list[bool]) -> None:
    async def story() -> tuple[list[bool], int]:
        server = Server()
        busy, parts, queued = made = server.accepts(3)
        for socket in made:
            del socket.cycle
            socket.queue, socket.frames = asyncio.Queue(), [b""] * 10_000
        parts.frames.append(b"")
        for _ in range(1000):
            busy.queue.put_nowait({})
            queued.queue.put_nowait({})
        queued.queue.put_nowait({})
        server.connections._tick()
        return server.live(made), queued.queue.qsize()

    assert asyncio.run(story()) == ([True, False, False], 0)


def test_of_too_many_unread_answers_those_of_clients_that_read_nothing_are_dropped(
    few: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_UNREAD_S", 0.05)

    async def story() -> list[list[bool]]:
        server = Server()
        made = server.accepts(8)
        seen = []

        async def tick(*sizes: int) -> None:
            await asyncio.sleep(0.1)
            for socket, size in zip(made, sizes, strict=True):
                socket.unsent = size << 20
            server.connections._tick()
            seen.append(server.live(made))

        for socket in made:
            del socket.cycle
        await tick(1, 2, 3, 4, 5, 6, 7, 8)  # 36 MB, all of them new
        await tick(1, 2, 3, 3, 4, 5, 6, 8)  # 32 MB: some read, the last does not
        await tick(1, 2, 3, 3, 4, 4, 5, 20)  # 42 MB: it is the largest that reads nothing
        monkeypatch.setattr(connections, "_UNREAD_S", 60.0)
        await tick(30, 29, 28, 27, 10, 6, 7, 0)  # more than all may leave, in whatever time
        return seen

    first, second, third, last = asyncio.run(story())
    assert first == second == [True] * 8
    assert third == [True] * 7 + [False]
    assert last == [False] + [True] * 6 + [False]


def test_the_oldest_make_room_when_descriptors_are_few(few: list[bool]) -> None:
    async def story() -> tuple[list[bool], list[bool]]:
        server = Server()
        busy, *waiting = server.accepts(4)
        busy.cycle = SimpleNamespace(response_complete=False)
        few[0] = True
        before = server.live([busy, *waiting])
        after = server.live([busy, *waiting, *server.accepts(2)])
        told = [b"try again later" in protocol.sent for protocol in (busy, *waiting)]
        assert told == [False, True, True, False]  # their requests may be on their way
        return before, after

    before, after = asyncio.run(story())
    assert all(before)
    assert after == [True, False, False, True, True, True]


def test_a_connection_without_a_descriptor_reads_why(few: list[bool]) -> None:
    class Transport(asyncio.WriteTransport):
        sent = b""

        def write(self, data: Any) -> None:
            assert not self.is_closing()
            self.sent += data

        def close(self) -> None:
            self.is_closing = lambda: True  # type: ignore[method-assign]

        def is_closing(self) -> bool:
            return False

    async def story() -> Transport:
        few[0] = True
        transport = Transport()
        refusal = Server().accepts()[0]
        refusal.connection_made(transport)
        assert not transport.sent  # the kernel would drop it with the unread request
        refusal.data_received(b"GET / HTTP/1.1\r\n")
        refusal.data_received(b"\r\n")
        return transport

    transport = asyncio.run(story())
    head, _, words = transport.sent.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert f"Content-Length: {len(words)}" in head.decode()
    assert b"try again later" in words
    assert transport.is_closing()


def test_freed_memory_goes_back_to_the_system_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch, few: list[bool]
) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    async def story() -> tuple[int, int]:
        watch = asyncio.create_task(Server(request_s=0.1).connections.watch())
        texts = [bytes(4_000) for _ in range(20_000)]
        kept = texts.pop()  # freed memory below it stays in the process
        del texts
        before = resident()
        await asyncio.sleep(0.3)
        watch.cancel()
        return before - resident(), len(kept)

    monkeypatch.setattr(connections, "_TRIM_S", 0.0)
    assert asyncio.run(story())[0] > 40 << 20


def test_relieve_closes_the_older_half_from_another_thread(few: list[bool]) -> None:
    async def story() -> list[bool]:
        server = Server(request_s=60)
        watch = asyncio.create_task(server.connections.watch())
        await asyncio.sleep(0)
        made = server.accepts(100)
        thread = threading.Thread(target=server.connections.relieve)
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0.01)
        watch.cancel()
        return server.live(made)

    assert asyncio.run(story()) == [False] * 50 + [True] * 50


def test_relieve_before_the_start_does_nothing() -> None:
    Connections(1000).relieve()


def test_one_failed_accept_is_one_report_and_frees_descriptors(
    few: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[dict[str, Any]] = []
    monkeypatch.setattr(
        asyncio.BaseEventLoop,
        "default_exception_handler",
        lambda _, context: reports.append(context),
    )

    async def story() -> list[bool]:
        server = Server(request_s=60)
        watch = asyncio.create_task(server.connections.watch())
        await asyncio.sleep(0)
        made = server.accepts(100)
        for _ in range(2048):
            asyncio.get_running_loop().call_exception_handler(
                {"message": "socket.accept() out of system resource"}
            )
        watch.cancel()
        return server.live(made)

    assert asyncio.run(story()).count(True) == 50
    assert len(reports) == 1
