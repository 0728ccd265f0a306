"""Clients and policies that try to exhaust, lock or read a server.

`besiege` runs them in a process of their own at nice 19. `findings.py` plays single attacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ctypes import c_longlong
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from agent.policies.scripted import block

LOOP = "while True: pass"
READ = "import os\nos.read(3, 1)"
HOLD = 'x = b"x" * (76 << 20)'
_CALL = 'rlm_query_batched(["a"] * 8)'
_SOCKETS = 140
"""Idle connections of one attacker; eight attackers exceed 1,024 descriptors."""
_HALF = 10
"""Unfinished requests of each sort that one attacker holds."""
_LATER_S = 5.0
LOSSES = (OSError, EOFError, TimeoutError, WebSocketException, KeyError, ValueError)

Attack = Callable[[str], Awaitable[object]]
"""One round of an attack on a server at this URL."""


def session(url: str, path: str = "/ws", **options: Any) -> connect:
    """A raw WebSocket to the server, without limits on its messages."""
    address = f"ws{url.removeprefix('http')}{path}"
    return connect(address, max_size=None, ping_interval=None, compression=None, **options)


async def ask(socket: ClientConnection, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """The data of the answer to one message."""
    await socket.send(json.dumps({"type": kind, "data": data}))
    return dict(json.loads(await socket.recv())["data"])


async def cells(url: str, code: str, count: int = 4) -> list[dict[str, Any]]:
    """Answers to the same cell, played by the root of a new session."""
    async with session(url) as socket:
        await ask(socket, "reset", {"difficulty": "medium"})
        return [await ask(socket, "step", {"text": block(code)}) for _ in range(count)]


async def grow(socket: ClientConnection, code: str, last: str) -> dict[str, Any]:
    """Open all frames of an episode: inner frames play `code`, which calls, others play `last`.

    Returns:
        The last answer.
    """
    answer = await ask(socket, "reset", {"difficulty": "medium"})
    for depth in range(3):
        text = block(last if depth == 2 else f"{code}\nr = {_CALL}")
        turns = [
            {"frame": view["frame"], "text": text}
            for view in answer["observation"]["frames"]
            if view["status"] == "ready" and view["depth"] == depth
        ]
        answer = await ask(socket, "step", {"turns": turns})
    return answer


async def http(url: str, path: str, body: bytes, limit_s: float = 10.0) -> bytes:
    """Answer to a POST of JSON, with its head."""
    async with asyncio.timeout(limit_s):
        reader, writer = await stream(url)
        try:
            length = f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(f"{request(url, path)}{length}".encode() + body)
            await writer.drain()
            return await reader.read()
        finally:
            writer.close()


async def stream(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A bare connection to the server."""
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port)


def request(url: str, path: str) -> str:
    """The first lines of a POST. To `/mcp` it is text, as a web page can send it anywhere."""
    sort = "text/plain" if path == "/mcp" else "application/json"
    return f"POST {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nContent-Type: {sort}\r\n"


def turns_message(size: int) -> str:
    """A step of `size` bytes whose turns are all empty objects."""
    return '{"type":"step","data":{"turns":[' + ",".join(["{}"] * (size // 3)) + "]}}"


def lists_message(size: int) -> str:
    """A reset of `size` bytes that contains as many empty lists as fit."""
    return '{"type":"reset","data":{"x":[' + ",".join(["[]"] * (size // 3)) + "]}}"


def zeros_message(size: int) -> str:
    """A reset of `size` bytes that contains as many numbers as fit."""
    return '{"type":"reset","data":{"x":[' + ",".join("0" * (size // 2)) + "]}}"


async def asked(url: str, message: str) -> str:
    """The answer to one raw message in a new session."""
    async with session(url) as socket:
        await socket.send(message)
        return str(await socket.recv())


# --- rounds of the attackers


async def _memory(url: str) -> None:
    async with session(url) as socket:
        await grow(socket, HOLD, HOLD)
        await asyncio.sleep(_LATER_S)


async def _held(url: str, first: bytes, more: bytes = b"") -> None:
    """Hold a connection until the server closes it, and send `more` each second."""
    reader, writer = await stream(url)
    try:
        writer.write(first)
        while not reader.at_eof():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await reader.read(65_536)
            writer.write(more)
            await writer.drain()
    finally:
        writer.close()


async def _descriptors(url: str) -> None:
    await asyncio.gather(*(_held(url, b"") for _ in range(_SOCKETS)))


async def _slots(url: str) -> None:
    await cells(url, READ)


async def _messages(url: str) -> None:
    await asked(url, turns_message(1_500_000))
    await asked(url, lists_message(16_000_000))


SESSION = b'{"jsonrpc":"2.0","method":"openenv/session/create","id":1}'


async def _floods(url: str) -> None:
    async def posts() -> None:
        while True:
            await http(url, "/mcp", SESSION)
            await http(url, "/reset", b"{}")

    async with asyncio.TaskGroup() as group:
        loops = group.create_task(cells(url, LOOP))
        flood = group.create_task(posts())
        await loops
        flood.cancel()


async def _slow(url: str) -> None:
    head = request(url, "/reset")
    upgrade = (
        f"GET /ws HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    frame = b"\x81\xff" + (1 << 20).to_bytes(8, "big") + bytes(4)
    kinds = (
        (f"{head}X-A: ".encode(), b"a"),
        (f"{head}Content-Length: 100000\r\n\r\n".encode(), b"a"),
        (upgrade.encode() + frame, b"a"),
    )
    await asyncio.gather(*(_held(url, *kind) for kind in kinds for _ in range(_HALF)))


KINDS: Mapping[str, Attack] = {
    "memory": _memory,
    "descriptors": _descriptors,
    "slots": _slots,
    "messages": _messages,
    "floods": _floods,
    "slow clients": _slow,
}


def besiege(
    url: str, kinds: Sequence[str], each: int, rounds: c_longlong, pipe: Connection
) -> None:
    """Attack from a message in the pipe until the end of this process, which does nothing else.

    Args:
        url: address of the server.
        kinds: names of `KINDS`.
        each: attackers of each kind.
        rounds: counts rounds that ended, by success or by failure.
        pipe: gives one message when the attack begins.
    """
    os.nice(19)
    pipe.recv()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async def attacker(attack: Attack) -> None:
        while True:
            with contextlib.suppress(*LOSSES, ExceptionGroup):
                await attack(url)
            rounds.value += 1
            await asyncio.sleep(0.2)

    async def all_of_them() -> None:
        await asyncio.gather(*(attacker(KINDS[kind]) for kind in kinds for _ in range(each)))

    asyncio.run(all_of_them())
