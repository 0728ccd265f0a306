"""What the REPL sandbox costs, beside other ways to run a policy's Python.

    pip install smolagents==1.26.0 pydantic-monty==1.4.0   # optional, measured where installed
    python -m benchmarks.sandbox [--living 1,64,512,800]

Prints one table. Times are the median (wall) or the mean (CPU, of this process and all it
started) in milliseconds; memory is what one more living episode adds to all of them together
(proportional set size), in megabytes.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import resource
import statistics
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.sandbox_peers import GROUP, Peer, Session, installed
from env.server.sandbox import Repl, SandboxHost
from env.settings import LimitSettings, SandboxSettings

_SIZES = {"empty": 0, "1 MB": 1_000_000, "10 MB": 10_000_000}
_GROUPS = 3
_ROUNDS = 500
_SECONDS = 4.0
"""Least wall seconds of a measurement of episodes per second."""
_TURNS = (
    "x = [len(context), 2, 3]\nprint(x[1])",
    "y = sum(x)\nz = {str(i): i for i in range(50)}",
    "a = llm_query('which?')",
    "b = [k for k in z if k.endswith('7')]\nprint(a, len(b))",
    "FINAL(y)",
)
_THREADS = os.cpu_count() or 1


class Clock:
    """Wall and CPU seconds since it was made."""

    def __init__(self) -> None:
        self._cpu = _cpu_s()
        self._wall = time.perf_counter()

    def read(self) -> tuple[float, float]:
        """(wall, CPU) seconds."""
        wall = time.perf_counter() - self._wall
        return wall, _cpu_s() - self._cpu


def _tree(pid: int) -> list[int]:
    """This process and all below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
            for child in (task / "children").read_text().split():
                found += _tree(int(child))
    return found


def _cpu_s() -> float:
    """CPU seconds of this process and all it started, the dead ones by who reaped them."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for pid in _tree(os.getpid()):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += time.clock_gettime((~pid << 3) | 2) + sum(map(int, fields[13:15])) / ticks
    return total


def _memory_mb() -> float:
    """Proportional set size of the same processes."""
    total = 0
    for pid in _tree(os.getpid()):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def measure_start(peer: Peer, size: int) -> tuple[str, str]:
    """Start with a context: times, memory. The first of each group loads it and is not counted."""
    kept: list[Session] = []
    walls, cpu, memory = [], 0.0, 0.0
    for _ in range(_GROUPS):
        context = "x" * size
        kept.append(peer.open(context))
        before, clock = _memory_mb(), Clock()
        for _ in range(GROUP - 1):
            start = time.perf_counter()
            kept.append(peer.open(context))
            walls.append(time.perf_counter() - start)
        cpu += clock.read()[1]
        memory += _memory_mb() - before
    for session in kept:
        session.close()
    opened = len(walls)
    times = f"{statistics.median(walls) * 1000:.2f} / {cpu / opened * 1000:.2f}"
    return times, f"{max(memory / opened, 0):.2f}"


def measure_cells(peer: Peer) -> tuple[str, str]:
    """`x = 1`, and a sub-call with its answer."""
    session = peer.open("x" * 1000)
    session.run("x = 1")
    walls, clock = [], Clock()
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        session.run("x = 1")
        walls.append(time.perf_counter() - start)
    cpu = clock.read()[1] / _ROUNDS
    cell = f"{statistics.median(walls) * 1000:.3f} / {cpu * 1000:.3f}"
    clock = Clock()
    session.run(f"for _ in range({_ROUNDS}):\n    a = llm_query('a')")
    wall, cpu = (seconds / _ROUNDS for seconds in clock.read())
    session.close()
    return cell, f"{wall * 1000:.3f} / {cpu * 1000:.3f}"


def measure_episodes(peer: Peer, living: int) -> str:
    """Episodes with 1 MB and five turns, while so many live: per second, CPU of one, memory."""
    threads = min(_THREADS, living)
    context = "x" * 1_000_000
    before = _memory_mb()
    with ThreadPoolExecutor(threads) as pool:
        shares = [living // threads + (number < living % threads) for number in range(threads)]
        rings = list(pool.map(lambda share: _fill(peer, context, share), shares))
        memory = (_memory_mb() - before) / living
        clock = Clock()
        least = max(living // threads, 10)
        finished = sum(pool.map(lambda ring: _turn(peer, context, ring, least), rings))
        wall, cpu = clock.read()
        for ring in rings:
            for session, _ in ring:
                session.close()
    return f"{finished / wall:.0f} / {cpu / finished * 1000:.1f} / {max(memory, 0):.1f}"


def _fill(peer: Peer, context: str, living: int) -> deque[tuple[Session, int]]:
    """Living episodes, each at another of its turns."""
    ring: deque[tuple[Session, int]] = deque()
    for number in range(living):
        session = peer.open(context)
        for code in _TURNS[: number % len(_TURNS)]:
            session.run(code)
        ring.append((session, number % len(_TURNS)))
    return ring


def _turn(peer: Peer, context: str, ring: deque[tuple[Session, int]], least: int) -> int:
    """Play the episodes turn by turn, each ended one replaced; how many ended."""
    finished, end = 0, time.perf_counter() + _SECONDS
    while finished < least or time.perf_counter() < end:
        session, turn = ring.popleft()
        session.run(_TURNS[turn])
        if turn + 1 < len(_TURNS):
            ring.append((session, turn + 1))
            continue
        session.close()
        finished += 1
        ring.append((peer.open(context), 0))
    return finished


def measure(peer: Peer, living: list[int]) -> dict[str, str]:
    """The column of one system."""
    column = {}
    for name, size in _SIZES.items():
        times, memory = measure_start(peer, size)
        column[f"start, context {name}: ms wall / CPU"] = times
        column[f"memory of one, context {name}: MB"] = memory
    cell, call = measure_cells(peer)
    column["`x = 1`: ms wall / CPU"] = cell
    column["sub-call and answer: ms wall / CPU"] = call
    for count in living:
        name = f"{count} living: episodes per s / ms CPU of one / MB of one"
        column[name] = measure_episodes(peer, count)
    return column


def measure_parts(size: int) -> str:
    """Who spends the CPU of a REPL's start, first cell and end, in milliseconds each."""
    host = SandboxHost(LimitSettings(), SandboxSettings())
    zygote = host._zygote.pid
    parts = []

    def spent(action: Callable[[], list[Repl]], repls: list[Repl]) -> list[Repl]:
        before = [time.process_time(), _cpu_of([zygote]), _cpu_of(_pids(repls))]
        repls = action()
        after = [time.process_time(), _cpu_of([zygote]), _cpu_of(_pids(repls))]
        one = [(new - old) / _ROUNDS * 10_000 for new, old in zip(after, before, strict=True)]
        parts.append(" + ".join(f"{cpu:.1f}" for cpu in one))
        return repls

    repls = spent(lambda: [host.open("x" * size) for _ in range(_ROUNDS // 10)], [])
    spent(lambda: [repl for repl in repls if repl.run("x = 1")], repls)
    host.close()
    return f"server + zygote + worker: start {parts[0]}, first cell {parts[1]} ms CPU"


def _pids(repls: list[Repl]) -> list[int]:
    return [repl._worker.pid for repl in repls if repl._worker is not None]


def _cpu_of(pids: list[int]) -> float:
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--living", default="1,64,512,800", help="episodes that live at once")
    parser.add_argument("--only", help="measure the systems whose name holds this text")
    options = parser.parse_args()
    living = [int(count) for count in options.living.split(",")]
    logging.disable()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the start")
    columns = {}
    for name, system in installed().items():
        if options.only is None or options.only in name:
            with system() as peer:
                columns[name] = measure(peer, living)
    names = list(columns)
    print(f"load average {os.getloadavg()[0]:.1f} at the end")
    print("| |", " | ".join(names), "|")
    print("|---" * (len(names) + 1) + "|")
    for row in columns[names[0]]:
        print(f"| {row} |", " | ".join(columns[name][row] for name in names), "|")
    print(f"sandbox, context 1 MB: {measure_parts(_SIZES['1 MB'])}")


if __name__ == "__main__":
    main()
