"""Play attacks of a security review against a server, and print what its neighbours noticed.

    python -m benchmarks.hostile [--start module|uvicorn] [--only A1 A12]

Each attack hits a server of its own, with 2 GB and a soft limit of 1,024 descriptors. Meanwhile an
open session plays `x = 1`, and new clients begin episodes. The exit code is 1 if an attack got what
it wanted, or cost somebody else an episode or two seconds. Attacks that cost nobody anything,
such as texts of exceptions and foreign origins, are tests: `tests/attacks/test_env_door.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import psutil
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from agent.policies.scripted import block
from env import variables
from env.client import RLMEnv
from env.errors import EpisodeError, RefusedError
from env.models import RLMAction
from flows.services.processes import free_port
from tasks.deployment.checks import healthy

Answer = TypeVar("Answer")

WAYS = {
    "module": ("-m", "env.server.app"),
    "uvicorn": ("-m", "uvicorn", "env.server.app:app"),
}
"""Commands that start a server, after the interpreter's name."""
SETTINGS = """
env: {memory_mb: 2048}
prepare: {synthetic: {collections: {train: 8, validation: 1, test: 1}}}
"""
DESCRIPTORS = 1024
WAIT_S = 2.0
"""Longest wait of other clients during an attack."""
LONGEST_S = 300.0
"""Seconds after which an attack that goes on is over."""
ANSWER_BYTES = 65_536
HOLD = 'x = b"x" * (76 << 20)'
READ = "import os\nos.read(3, 1)"
CALL = 'rlm_query_batched(["a"] * 8)'
LOSSES = (OSError, EOFError, WebSocketException, KeyError, ValueError)

Did = tuple[str, bool]
"""What the server did, and whether it gives the attacker nothing."""
Play = Callable[[str, int], Awaitable[Did]]
"""An attack on the server at this URL, whose process has this id."""


@dataclass(frozen=True)
class Attack:
    """One attack: its number in the review, its action, and the memory that it may take."""

    number: str
    sent: str
    play: Play
    more_mb: float = 100.0


# --- a hostile client


def session(url: str) -> connect:
    """A raw WebSocket to the server, without limits on its messages."""
    address = f"ws{url.removeprefix('http')}/ws"
    return connect(address, max_size=None, ping_interval=None, compression=None)


async def ask(socket: ClientConnection, kind: str, **data: Any) -> dict[str, Any]:
    """The data of the answer to one message."""
    await socket.send(json.dumps({"type": kind, "data": data}))
    return dict(json.loads(await socket.recv())["data"])


async def turns(socket: ClientConnection, answer: dict[str, Any], code: str) -> dict[str, Any]:
    """Play the code in all frames that are ready."""
    ready = [v["frame"] for v in answer["observation"]["frames"] if v["status"] == "ready"]
    return await ask(
        socket, "step", turns=[{"frame": frame, "text": block(code)} for frame in ready]
    )


async def http(url: str, path: str, body: bytes) -> bytes:
    """Answer to a POST, with its head."""
    reader, writer = await opened(url)
    length = f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(f"{head(url, path)}{length}".encode() + body)
    await writer.drain()
    answer = await reader.read()
    writer.close()
    return answer


async def opened(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A bare connection to the server."""
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port)


def head(url: str, path: str) -> str:
    """The first lines of a POST. To `/mcp` it is text, as a web page can send it anywhere."""
    sort = "text/plain" if path == "/mcp" else "application/json"
    return f"POST {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nContent-Type: {sort}\r\n"


_open: list[Any] = []
"""Connections that stay open while memory is measured."""


# --- attacks


def message(start: str, item: str, end: str, size: int) -> Play:
    """A message of this size that repeats an item."""

    async def play(url: str, pid: int) -> Did:
        async with session(url) as socket:
            await socket.send(start + ",".join([item] * (size // (len(item) + 1))) + end)
            answer = str(await socket.recv())
        return f"answers {len(answer):,} bytes: {answer[:60]}", len(answer) <= ANSWER_BYTES

    return play


def wrong_turns(size: int) -> Play:
    """A step whose turns are all empty objects."""
    return message('{"type":"step","data":{"turns":[', "{}", "]}}", size)


def full_reset(item: str) -> Play:
    """A reset of 16 MB that contains as many such items as fit."""
    return message('{"type":"reset","data":{"x":[', item, "]}}", 16_000_000)


async def step_by_http(url: str, pid: int) -> Did:
    """Wrong turns by the route that has no session."""
    body = json.dumps({"action": {"turns": [{}] * 20_000}}).encode()
    answer = await http(url, "/step", body)
    status = answer.partition(b"\r\n")[0].decode(errors="replace")
    return f"answers {len(answer):,} bytes: {status}", len(answer) <= ANSWER_BYTES


async def hold_memory(url: str, pid: int) -> Did:
    """Open frame after frame, each with 76 MB."""
    async with session(url) as socket:
        answer = await ask(socket, "reset", difficulty="medium")
        for code in (f"{HOLD}\nr = {CALL}", f"{HOLD}\nr = {CALL}", HOLD):
            answer = await turns(socket, answer, code)
        family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
        own, *others = [int(Path(f"/proc/{p}/oom_score_adj").read_text()) for p in family]
        first = min(others) > own
        count = answer["observation"]["counters"]["frames"]
        return f"{count} frames; the kernel would end a worker first: {first}", first


async def large_answers(url: str, pid: int) -> Did:
    """Let child after child answer 4 MB."""
    socket = await session(url)
    answer = await ask(socket, "reset", difficulty="medium")
    answer = await turns(socket, answer, f"for _ in range(4): r = {CALL}\nFINAL(1)")
    for _ in range(4):
        if not answer["done"]:
            answer = await turns(socket, answer, 'FINAL("a" * 4_194_000 + "\\U0001f600")')
    _open.append(socket)
    seen = answer["observation"]
    frames = seen["counters"]["frames"]
    return f"{frames} frames, void {seen['void']}", frames > 1 and seen["void"] is None


def sleepers(count: int) -> Play:
    """Cells that read their channel, and so would hold a slot for ever."""

    async def sleeper(url: str) -> str:
        async with session(url) as socket:
            await ask(socket, "reset", difficulty="medium")
            answer = await ask(socket, "step", text=block(READ))
            return str(answer["observation"]["frames"][0]["messages"][-1]["content"])

    async def play(url: str, pid: int) -> Did:
        texts = await asyncio.gather(*(sleeper(url) for _ in range(count)))
        return f"last answer: {texts[-1][:60]}", all("error" in text.lower() for text in texts)

    return play


async def mcp_sessions(url: str, pid: int) -> Did:
    """Make sessions by the protocol that does not end them."""
    create = b'{"jsonrpc":"2.0","method":"openenv/session/create","id":1}'
    made = sum([b"session_id" in await http(url, "/mcp", create) for _ in range(257)])
    return f"{made} sessions made", not made


async def idle_connections(url: str, pid: int) -> Did:
    """Take all descriptors."""
    streams = [await opened(url) for _ in range(1100)]
    await asyncio.sleep(20.0)
    reads = (asyncio.wait_for(reader.read(), 1.0) for reader, _ in streams)
    ends = await asyncio.gather(*reads, return_exceptions=True)
    closed = sum(not isinstance(end, TimeoutError) for end in ends)
    return f"{closed} of 1,100 closed after 20 s", closed == len(streams)


async def bodies(url: str, pid: int) -> Did:
    """Send bodies of 400 MB."""
    sent = []
    for path in ("/mcp", "/reset"):
        _, writer = await opened(url)
        writer.write(f"{head(url, path)}Content-Length: {400 << 20}\r\n\r\n".encode())
        sent.append(0)
        with contextlib.suppress(*LOSSES):
            async with asyncio.timeout(30.0):
                for _ in range(399):
                    writer.write(b" " * (1 << 20))
                    await writer.drain()
                    sent[-1] += 1
        _open.append(writer)
    return f"takes {sent[0]} and {sent[1]} MB", max(sent) < 10


ATTACKS = (
    Attack("A1", "0.06 MB of `{}` turns, /ws", wrong_turns(60_000)),
    Attack("A1", "0.06 MB of `{}` turns, POST /step", step_by_http),
    Attack("A1", "0.6 MB of `{}` turns, /ws", wrong_turns(600_000)),
    Attack("A1", "1.5 MB of `{}` turns, /ws", wrong_turns(1_500_000)),
    Attack("A2", "73 frames that hold 76 MB each", hold_memory, more_mb=1900.0),
    Attack("A2", "31 children that answer 4 MB each", large_answers, more_mb=200.0),
    Attack("A3", "4 cells that read their channel", sleepers(4)),
    Attack("A3", "12 cells that read their channel", sleepers(12)),
    Attack("A4", "257 x POST /mcp session/create", mcp_sessions),
    Attack("A5", "1,100 idle connections", idle_connections),
    Attack("A12", "399 of 400 MB to /mcp and /reset", bodies),
    Attack("A12", "16 MB of `[]`, /ws", full_reset("[]")),
    Attack("A12", "16 MB of `0`, /ws", full_reset("0")),
)


# --- the server and its neighbours


@dataclass
class Neighbours:
    """What honest clients notice."""

    longest_s: float = 0.0
    """Longest wait for an answer."""
    answers: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    """Episodes that were lost or refused, by cause."""
    over: bool = False
    """Whether the clients end: one that is cancelled may say that its connection was lost."""

    async def wait(self, answer: Awaitable[Answer]) -> Answer:
        """An answer, with its time; a wait that is cancelled counts with its time, too."""
        started = time.monotonic()
        try:
            return await answer
        finally:
            self.answers += 1
            self.longest_s = max(self.longest_s, time.monotonic() - started)

    async def play(self, url: str, stays: bool) -> None:
        """Play `x = 1` in one session, or begin an episode in one session after another."""
        while not self.over:
            client = RLMEnv(url)
            try:
                await self.wait(client.connect())
                seen = (await self.wait(client.reset(difficulty="medium"))).observation
                while stays and seen.void is None and seen.refused is None:
                    await asyncio.sleep(0.02)
                    turn = RLMAction(text=block("x = 1"))
                    again = client.reset(difficulty="medium") if seen.done else client.step(turn)
                    seen = (await self.wait(again)).observation
                if seen.void or seen.refused:
                    self.lost[str(seen.void or seen.refused)] += 1
            except (EpisodeError, RefusedError, ConnectionError) as error:
                self.lost[str(error)[:120]] += not self.over
            finally:
                await client.close()
            await asyncio.sleep(0.5)


@contextmanager
def serve(way: Sequence[str]) -> Iterator[tuple[psutil.Popen, str]]:
    """Start a server; yields its process and its address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as settings:
        settings.write(SETTINGS)
        settings.flush()
        server = psutil.Popen(
            [sys.executable, *way, "--host", "127.0.0.1", "--port", str(port)],
            env={**os.environ, variables.SETTINGS: settings.name, variables.DATA: ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard)),
        )
        try:
            while not healthy(url, timeout_s=5.0):
                if server.poll() is not None:
                    raise SystemExit("The server did not start. Start it by hand to see why.")
                time.sleep(0.1)
            yield server, url
        finally:
            server.terminate()
            server.wait(timeout=30)


def memory_mb(server: psutil.Popen) -> float:
    """Proportional set size of the server and its sandbox."""
    size = 0
    for process in (server, *server.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            size += process.memory_full_info().pss
    return size / (1 << 20)


def attacker(number: int, url: str, pid: int, pipe: Connection) -> None:
    """Attack, send the result, and keep connections open until killed."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.nice(19)

    async def run() -> None:
        try:
            async with asyncio.timeout(LONGEST_S):
                pipe.send(await ATTACKS[number].play(url, pid))
        except TimeoutError:
            pipe.send(("no answer", False))
        except LOSSES as error:
            pipe.send((f"refuses or closes ({type(error).__name__})", True))
        await asyncio.sleep(3600)

    asyncio.run(run())


def play(attack: Attack, way: Sequence[str]) -> bool:
    """Play one attack, and print its row; returns whether nobody noticed it."""
    noticed, most_mb = Neighbours(), 0.0
    # A fork of this process could inherit locks that its threads hold.
    spawn = multiprocessing.get_context("spawn")

    async def watch(server: psutil.Popen, url: str) -> Did:
        nonlocal most_mb
        clients = [asyncio.create_task(noticed.play(url, stays)) for stays in (True, False)]
        await asyncio.sleep(2.0)
        before = memory_mb(server)
        ours, theirs = spawn.Pipe()
        arguments = (ATTACKS.index(attack), url, server.pid, theirs)
        process = spawn.Process(target=attacker, args=arguments, daemon=True)
        process.start()
        try:
            least, most = (time.monotonic() + seconds for seconds in (4.0, 2 * LONGEST_S))
            while server.poll() is None and process.is_alive() and time.monotonic() < most:
                if ours.poll() and time.monotonic() > least:
                    break
                most_mb = max(most_mb, await asyncio.to_thread(memory_mb, server) - before)
                await asyncio.sleep(0.1)
            return ours.recv() if ours.poll() else ("neither answers nor refuses", False)
        finally:
            process.kill()
            noticed.over = True
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)

    with serve(way) as (server, url):
        did, right = asyncio.run(watch(server, url))
    lost = dict(+noticed.lost)
    held = right and not lost and noticed.longest_s < WAIT_S and most_mb < attack.more_mb
    cells = (attack.number, attack.sent, did.replace("|", "\\|").replace("\n", " "))
    counts = f"{most_mb:.0f} | {noticed.longest_s:.2f} | {noticed.answers} | {lost}"
    print(f"| {' | '.join(cells)} | {counts} | {'yes' if held else '**no**'} |", flush=True)
    return held


def main() -> int:
    """Play the attacks, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--start", choices=sorted(WAYS), default="module", help="way of starting")
    parser.add_argument("--only", nargs="*", help="numbers of the attacks to play")
    options = parser.parse_args()
    print("| | sent | the server | MB more | longest wait, s | answers | lost | held |")
    print("|---|---|---|---|---|---|---|---|")
    wanted = [a for a in ATTACKS if options.only is None or a.number in options.only]
    held = [play(attack, WAYS[options.start]) for attack in wanted]
    return int(not all(held))


if __name__ == "__main__":
    sys.exit(main())
