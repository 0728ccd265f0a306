"""Play each single attack of a security review against a server, and print what it did.

    python -m benchmarks.hostile.findings [--start module|uvicorn] [--only A1 A12] [--json FILE]

Each attack hits its own server with 2 GB and a soft limit of 1,024 descriptors. Meanwhile an open
session plays `x = 1`, and new clients begin episodes. The exit code is 1 if an attack succeeded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from agent.policies.scripted import block
from benchmarks.hostile import attackers, honest
from benchmarks.hostile.attackers import (
    LOSSES,
    SESSION,
    ask,
    asked,
    http,
    lists_message,
    session,
    turns_message,
    zeros_message,
)
from benchmarks.hostile.report import FindingRow, finding_table
from benchmarks.hostile.server import SMALL, WAYS, Limits, Sampler, child, serve
from benchmarks.processes import tree

LONGEST_S = 300.0
"""Seconds after which an attack that goes on is over."""
ANSWER_BYTES = 65_536
_FORGED = "CRITICAL forged"
_CLOCK = """\
import runpy, signal, sys, time
real, ahead = time.time, [0]
time.time = lambda: real() + ahead[0]
signal.signal(signal.SIGUSR1, lambda *_: ahead.append(ahead.pop() + 3600))
del sys.argv[0:2]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""Program that runs a module with a clock that SIGUSR1 puts one hour ahead."""

Did = tuple[str, bool]
"""Answer of the server, and whether it gives the attacker nothing."""

Play = Callable[[str, int], Awaitable[Did]]
"""An attack; arguments are the URL and the server's process id."""


@dataclass(frozen=True)
class Finding:
    """One attack.

    Args:
        number: its number in the review.
        sent: action of the attacker.
        play: the attack.
        more_mb: memory that it may take.
        clock: whether SIGUSR1 sets the server's clock forward.
        settings: overrides of settings.
    """

    number: str
    sent: str
    play: Play
    more_mb: float = 100.0
    clock: bool = False
    settings: Sequence[str] = (SMALL,)


# --- A1: errors of validation


def _message(make: Callable[[int], str], size: int) -> Play:
    async def play(url: str, pid: int) -> Did:
        answer = await asked(url, make(size))
        return f"answers {len(answer):,} bytes: {answer[:60]}", len(answer) <= ANSWER_BYTES

    return play


async def _step_by_http(url: str, pid: int) -> Did:
    body = json.dumps({"action": {"turns": [{}] * 20_000}}).encode()
    answer = await http(url, "/step", body, LONGEST_S)
    return f"answers {len(answer):,} bytes: {_status(answer)}", len(answer) <= ANSWER_BYTES


def _status(answer: bytes) -> str:
    return answer.partition(b"\r\n")[0].decode(errors="replace") or "connection closed"


# --- A2: memory


async def _hold(url: str, pid: int) -> Did:
    async with session(url) as socket:
        answer = await attackers.grow(socket, attackers.HOLD, attackers.HOLD)
        own, *others = [int(Path(f"/proc/{p}/oom_score_adj").read_text()) for p in tree(pid)]
        first = min(others) > own
        count = answer["observation"]["counters"]["frames"]
        return f"{count} frames; the kernel would end a worker first: {first}", first


async def _answers(url: str, pid: int) -> Did:
    calls = f"for _ in range(4): r = {attackers._CALL}\nFINAL(1)"
    final = block('FINAL("a" * 4_194_000 + "\\U0001f600")')
    socket = await session(url)
    answer = await ask(socket, "reset", {"difficulty": "medium"})
    answer = await ask(socket, "step", {"text": block(calls)})
    for _ in range(4):
        ready = [v["frame"] for v in answer["observation"]["frames"] if v["status"] == "ready"]
        if ready:
            turns = [{"frame": frame, "text": final} for frame in ready]
            answer = await ask(socket, "step", {"turns": turns})
    _open.append(socket)
    seen = answer["observation"]
    frames = seen["counters"]["frames"]
    ends = f"{frames} frames, done {answer['done']}, void {seen['void']}"
    return ends, frames > 1 and seen["void"] is None


_open: list[Any] = []
"""Connections that stay open while memory is measured."""


# --- A3 to A5: slots, sessions, descriptors


def _readers(count: int) -> Play:
    async def play(url: str, pid: int) -> Did:
        ends = await asyncio.gather(
            *(attackers.cells(url, attackers.READ, 2) for _ in range(count))
        )
        texts = [_text(answer) for answers in ends for answer in answers]
        return f"last answer: {texts[-1]}", all("error" in text.lower() for text in texts)

    return play


def _text(answer: dict[str, Any]) -> str:
    frames = answer["observation"]["frames"]
    messages = frames[0]["messages"] if frames else []
    return str(messages[-1]["content"] if messages else frames)[:100]


async def _mcp_sessions(url: str, pid: int) -> Did:
    made = 0
    for _ in range(257):
        made += b"session_id" in await http(url, "/mcp", SESSION)
    await asyncio.sleep(5.0)
    return f"{made} sessions made", not made


async def _idle_connections(url: str, pid: int) -> Did:
    streams = [await attackers.stream(url) for _ in range(1100)]
    await asyncio.sleep(20.0)
    closed = sum(await asyncio.gather(*(_is_closed(reader) for reader, _ in streams)))
    return f"{closed} of 1,100 closed after 20 s", closed == len(streams)


async def _is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(1.0):
            await reader.read()
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


# --- A11: other origins


async def _origin(url: str, pid: int) -> Did:
    taken = []
    with contextlib.suppress(*LOSSES):
        async with session(url, origin="https://evil.example") as socket:
            await ask(socket, "reset", {})
            taken.append("a foreign Origin on /ws")
    evil = url.replace("127.0.0.1", "evil.example")
    reader, writer = await attackers.stream(url)
    writer.write(
        f"GET /metadata HTTP/1.1\r\nHost: {evil[7:]}\r\nConnection: close\r\n\r\n".encode()
    )
    if b" 200 " in (await reader.read()).partition(b"\r\n")[0]:
        taken.append("a foreign Host")
    writer.close()
    if b"session_id" in await http(url, "/mcp", SESSION):
        taken.append("a session by text/plain to /mcp")
    return f"takes {', '.join(taken) or 'none'}", not taken


# --- A12: bodies and messages


async def _bodies(url: str, pid: int) -> Did:
    sent = []
    for path in ("/mcp", "/reset"):
        _, writer = await attackers.stream(url)
        writer.write(f"{attackers.request(url, path)}Content-Length: {400 << 20}\r\n\r\n".encode())
        megabytes = 0
        with contextlib.suppress(*LOSSES):
            async with asyncio.timeout(30.0):
                for _ in range(399):
                    writer.write(b" " * (1 << 20))
                    await writer.drain()
                    megabytes += 1
        _open.append(writer)
        sent.append(megabytes)
    await asyncio.sleep(5.0)
    return f"takes {sent[0]} and {sent[1]} MB", max(sent) < 10


# --- A13 to A15: clocks, texts, the log


async def _clocks(url: str, pid: int) -> Did:
    code = (
        "import time\ndef read(pid):\n    try:\n        time.clock_gettime((~pid << 3) | 2)\n"
        "        return 1\n    except OSError:\n        return 0\n"
        f"print(read({pid}), sum(map(read, range(1, 60_000))))"
    )
    text = _text((await attackers.cells(url, code, 1))[-1])
    return f"server's clock, clocks of all processes: {text.splitlines()[0]}", text[:3] == "0 0"


async def _exceptions(url: str, pid: int) -> Did:
    leaks = []
    for path, message in (("/mcp", "[1]"), ("/ws", '{"type":"mcp","data":{}}')):
        with contextlib.suppress(*LOSSES):
            async with session(url, path) as socket:
                await socket.send(message)
                answer = str(await socket.recv())
                if "mapping" in answer or "validation error" in answer:
                    leaks.append(f"an exception's text from {path}")
    with contextlib.suppress(*LOSSES):
        async with session(url, f"/ws?session_id=x%0A{_FORGED.replace(' ', '%20')}") as socket:
            await socket.recv()
    return "; ".join(leaks) or "no text of an exception", not leaks


async def _clock_forward(url: str, pid: int) -> Did:
    async with session(url) as socket:
        await ask(socket, "reset", {"difficulty": "medium"})
        await ask(socket, "step", {"text": block("x = 1")})
        os.kill(pid, signal.SIGUSR1)
        await asyncio.sleep(7.0)  # sessions are examined each five seconds
        seen = (await ask(socket, "step", {"text": block("x = 2")}))["observation"]
        return f"void {seen['void']}, refused {seen['refused']}", not seen["void"]


FINDINGS = (
    Finding("A1", "0.06 MB of `{}` turns, /ws", _message(turns_message, 60_000)),
    Finding("A1", "0.06 MB of `{}` turns, POST /step", _step_by_http),
    Finding("A1", "0.6 MB of `{}` turns, /ws", _message(turns_message, 600_000)),
    Finding("A1", "1.5 MB of `{}` turns, /ws", _message(turns_message, 1_500_000)),
    Finding("A2", "32 frames that hold 76 MB each", _hold, more_mb=1900.0),
    Finding("A2", "31 children that answer 4 MB each", _answers, more_mb=200.0),
    Finding("A3", "4 cells that read their channel", _readers(4)),
    Finding("A3", "12 cells that read their channel", _readers(12)),
    Finding("A4", "257 x POST /mcp session/create", _mcp_sessions),
    Finding("A5", "1,100 idle connections", _idle_connections),
    Finding("A11", "a web page's requests", _origin),
    Finding("A12", "399 of 400 MB to /mcp and /reset", _bodies),
    Finding("A12", "16 MB of `[]`, /ws", _message(lists_message, 16_000_000)),
    Finding("A12", "16 MB of `0`, /ws", _message(zeros_message, 16_000_000)),
    Finding("A13", "a cell that reads clocks of processes", _clocks),
    Finding("A14", "odd messages to /mcp and /ws", _exceptions),
    Finding(
        "A15",
        "a clock set forward by an hour",
        _clock_forward,
        clock=True,
        settings=(SMALL, "env.idle_timeout_s=20"),
    ),
)


def play(finding: Finding, way: Sequence[str], limits: Limits) -> FindingRow:
    """Play one attack on a new server."""
    command = ("-c", _CLOCK, *way) if finding.clock else way
    watch, did = honest.Watch(), ("not finished", False)

    async def measure() -> tuple[float, Sampler]:
        client, seen = await honest.begin(server.url)
        await honest.tree(client, seen)
        await client.close()
        await watch.open(server.url)
        before, until = server.pss_mb(), time.monotonic() + LONGEST_S
        with Sampler(server) as sampler:
            attacker.send(None)
            await watch.run(lambda: attacker.poll() or not server.alive or time.monotonic() > until)
        return before, sampler

    with serve(command, limits, finding.settings) as server:
        with child(_attack, finding, server.url, server.process.pid) as attacker:
            before, sampler = asyncio.run(measure())
            if attacker.poll():
                did = attacker.recv()
            kept = server.settled_mb(before + finding.more_mb / 2, wait_s=4.0) - before
        log = server.log.read_text(errors="replace")
        forged = f"\n{_FORGED}" in log
        return FindingRow(
            number=finding.number,
            sent=finding.sent,
            did=did[0] + (", a forged line in the log" if forged else ""),
            as_it_must=did[1] and not forged,
            lived=server.alive,
            more_mb=sampler.total_mb - before,
            allowed_mb=finding.more_mb,
            kept_mb=kept,
            gap_s=watch.gap_s,
            paused_s=watch.paused_s,
            newcomers_s=watch.newcomers,
            turned_away=dict(watch.turned_away),
            voids=dict(watch.voids),
            log_bytes=len(log),
        )


def _attack(finding: Finding, url: str, pid: int, pipe: Connection) -> None:
    """Wait for a message, attack, send the result, and keep connections open until killed."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.nice(19)
    pipe.recv()

    async def run() -> None:
        try:
            pipe.send(await finding.play(url, pid))
        except TimeoutError:
            pipe.send(("no answer", False))
        except LOSSES as error:
            pipe.send((f"refuses or closes ({type(error).__name__})", True))
        await asyncio.sleep(3600)

    asyncio.run(run())


def main() -> int:
    """Play the attacks, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--start", choices=sorted(WAYS), default="module", help="way of starting")
    parser.add_argument("--only", nargs="*", help="numbers of the attacks to play")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the server ends, too
    rows = []
    for finding in FINDINGS:
        if options.only is None or finding.number in options.only:
            rows.append(play(finding, WAYS[options.start], Limits()))
            print(finding_table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    print(finding_table(rows))
    return int(not all(row.held for row in rows))


if __name__ == "__main__":
    sys.exit(main())
