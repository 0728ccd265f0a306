"""Compare the cost of the REPL sandbox with other ways to run a policy's Python.

    python -m benchmarks.sandbox [--living 1,64,512,800]

Prints one table. Wall times are medians and CPU times means, in milliseconds; CPU time is that of
this process and all its children. Memory is the proportional set size, in megabytes, that one more
living episode adds to all of these processes.
"""

from __future__ import annotations

import argparse
import io
import itertools
import logging
import os
import resource
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from env.server.sandbox import Repl, SandboxHost, SubCall
from env.settings import LimitSettings, SandboxSettings

_SIZES = {"empty": 0, "1 MB": 1_000_000, "10 MB": 10_000_000}
_GROUPS = 3
_ROUNDS = 500
_SECONDS = 4.0
"""Minimum wall seconds of a measurement of episodes per second."""
_TURNS = (
    "x = [len(context), 2, 3]\nprint(x[1])",
    "y = sum(x)\nz = {str(i): i for i in range(50)}",
    "a = llm_query('which?')",
    "b = [k for k in z if k.endswith('7')]\nprint(a, len(b))",
    "FINAL(y)",
)
_THREADS = os.cpu_count() or 1
_GONE = (FileNotFoundError, ProcessLookupError)
"""Errors of a process or thread that has just ended."""


GROUP = 8
"""Episodes that share one context, as in training."""


@dataclass(frozen=True)
class Session:
    """One living interpreter with `context`, `llm_query` and `FINAL`."""

    run: Callable[[str], object]
    """Runs a cell to its end and answers its sub-calls at once."""
    close: Callable[[], object]


Open = Callable[[str], Session]
"""Starts an interpreter with this context."""


def _answer(prompt: object) -> str:
    return "b"


@contextmanager
def _sandbox(shared: bool) -> Iterator[Open]:
    """This project's sandbox; a worker receives its context, or is forked from one that has it."""
    host = SandboxHost(LimitSettings(), SandboxSettings())
    opened = itertools.count()

    def start(context: str) -> Session:
        number = next(opened) // GROUP
        repl = host.open(context, f"{len(context)}-{number}" if shared else None)

        def run(code: str) -> object:
            event = repl.run(code)
            while isinstance(event, SubCall):
                event = repl.resume("b")
            if event.error is not None:
                raise RuntimeError(event.traceback or event.error)
            return event

        return Session(run, repl.close)

    try:
        yield start
    finally:
        host.close()


@contextmanager
def _in_process() -> Iterator[Open]:
    """`exec` in this process, without any boundary."""

    def start(context: str) -> Session:
        names = {"context": context, "llm_query": _answer, "FINAL": _answer}
        return Session(lambda code: exec(code, names), names.clear)

    with redirect_stdout(io.StringIO()):
        yield start


def systems() -> dict[str, Callable[[], AbstractContextManager[Open]]]:
    """Context manager of each system by its name."""
    return {
        "sandbox": partial(_sandbox, shared=False),
        f"sandbox, groups of {GROUP}": partial(_sandbox, shared=True),
        "`exec` in process": _in_process,
    }


def tree(pid: int) -> list[int]:
    """Pids of a process and its descendants; psutil would add milliseconds to a measurement."""
    found = [pid]
    with suppress(*_GONE):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(*_GONE):
                for child in (task / "children").read_text().split():
                    found += tree(int(child))
    return found


def cpu_of(pids: Iterable[int]) -> float:
    """CPU seconds of living processes, finer than the kernel's ticks."""
    seconds = 0.0
    for pid in pids:
        with suppress(OSError):
            seconds += time.clock_gettime((~pid << 3) | 2)
    return seconds


def cpu_s() -> float:
    """CPU seconds of this process and its descendants, including reaped ones."""
    pids = tree(os.getpid())
    ticks = 0
    for pid in pids:
        with suppress(*_GONE):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[13:15]))
    return cpu_of(pids) + ticks / os.sysconf("SC_CLK_TCK")


class Clock:
    """Measures wall and CPU seconds since its creation."""

    def __init__(self) -> None:
        self._cpu = cpu_s()
        self._wall = time.perf_counter()

    def read(self) -> tuple[float, float]:
        """(wall, CPU) seconds."""
        wall = time.perf_counter() - self._wall
        return wall, cpu_s() - self._cpu


def _memory_mb() -> float:
    size = 0
    for pid in tree(os.getpid()):
        with suppress(psutil.Error):
            size += psutil.Process(pid).memory_full_info().pss
    return size / (1 << 20)


def measure_start(start: Open, size: int) -> tuple[str, str]:
    """Times and memory of a start; the first of a group loads the context and is not counted."""
    kept: list[Session] = []
    walls, cpu, memory = [], 0.0, 0.0
    for _ in range(_GROUPS):
        context = "x" * size
        kept.append(start(context))
        before, clock = _memory_mb(), Clock()
        for _ in range(GROUP - 1):
            began = time.perf_counter()
            kept.append(start(context))
            walls.append(time.perf_counter() - began)
        cpu += clock.read()[1]
        memory += _memory_mb() - before
    for session in kept:
        session.close()
    opened = len(walls)
    times = f"{statistics.median(walls) * 1000:.2f} / {cpu / opened * 1000:.2f}"
    return times, f"{max(memory / opened, 0):.2f}"


def measure_cells(start: Open) -> tuple[str, str]:
    """Times of the cell `x = 1`, and of a sub-call with its answer."""
    session = start("x" * 1000)
    session.run("x = 1")
    walls, clock = [], Clock()
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        session.run("x = 1")
        walls.append(time.perf_counter() - began)
    cpu = clock.read()[1] / _ROUNDS
    cell = f"{statistics.median(walls) * 1000:.3f} / {cpu * 1000:.3f}"
    clock = Clock()
    session.run(f"for _ in range({_ROUNDS}):\n    a = llm_query('a')")
    wall, cpu = (seconds / _ROUNDS for seconds in clock.read())
    session.close()
    return cell, f"{wall * 1000:.3f} / {cpu * 1000:.3f}"


def measure_episodes(start: Open, living: int) -> str:
    """Episodes with 1 MB and five turns, while so many live: per second, CPU of one, memory."""
    threads = min(_THREADS, living)
    context = "x" * 1_000_000
    before = _memory_mb()
    with ThreadPoolExecutor(threads) as pool:
        shares = [living // threads + (number < living % threads) for number in range(threads)]
        rings = list(pool.map(lambda share: _fill(start, context, share), shares))
        memory = (_memory_mb() - before) / living
        clock = Clock()
        least = max(living // threads, 10)
        finished = sum(pool.map(lambda ring: _turn(start, context, ring, least), rings))
        wall, cpu = clock.read()
        for ring in rings:
            for session, _ in ring:
                session.close()
    return f"{finished / wall:.0f} / {cpu / finished * 1000:.1f} / {max(memory, 0):.1f}"


def _fill(start: Open, context: str, living: int) -> deque[tuple[Session, int]]:
    """Living episodes at different turns."""
    ring: deque[tuple[Session, int]] = deque()
    for number in range(living):
        session = start(context)
        for code in _TURNS[: number % len(_TURNS)]:
            session.run(code)
        ring.append((session, number % len(_TURNS)))
    return ring


def _turn(start: Open, context: str, ring: deque[tuple[Session, int]], least: int) -> int:
    """Play the episodes turn by turn, replacing each that ends; return how many ended."""
    finished, end = 0, time.perf_counter() + _SECONDS
    while finished < least or time.perf_counter() < end:
        session, turn = ring.popleft()
        session.run(_TURNS[turn])
        if turn + 1 < len(_TURNS):
            ring.append((session, turn + 1))
            continue
        session.close()
        finished += 1
        ring.append((start(context), 0))
    return finished


def measure(start: Open, living: list[int]) -> dict[str, str]:
    """Measurements of one system, by row of the table."""
    column = {}
    for name, size in _SIZES.items():
        times, memory = measure_start(start, size)
        column[f"start, context {name}: ms wall / CPU"] = times
        column[f"memory of one, context {name}: MB"] = memory
    cell, call = measure_cells(start)
    column["`x = 1`: ms wall / CPU"] = cell
    column["sub-call and answer: ms wall / CPU"] = call
    for count in living:
        name = f"{count} living: episodes per s / ms CPU of one / MB of one"
        column[name] = measure_episodes(start, count)
    return column


def measure_parts(size: int) -> str:
    """CPU milliseconds of a REPL's start and first cell, by process."""
    host = SandboxHost(LimitSettings(), SandboxSettings())
    zygote = host._zygote.pid
    parts = []

    def spent(action: Callable[[], list[Repl]], repls: list[Repl]) -> list[Repl]:
        before = [time.process_time(), cpu_of([zygote]), cpu_of(_pids(repls))]
        repls = action()
        after = [time.process_time(), cpu_of([zygote]), cpu_of(_pids(repls))]
        one = [(new - old) / _ROUNDS * 10_000 for new, old in zip(after, before, strict=True)]
        parts.append(" + ".join(f"{cpu:.1f}" for cpu in one))
        return repls

    repls = spent(lambda: [host.open("x" * size) for _ in range(_ROUNDS // 10)], [])
    spent(lambda: [repl for repl in repls if repl.run("x = 1")], repls)
    host.close()
    return f"server + zygote + worker: start {parts[0]}, first cell {parts[1]} ms CPU"


def _pids(repls: list[Repl]) -> list[int]:
    return [repl._worker.pid for repl in repls if repl._worker is not None]


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--living", default="1,64,512,800", help="numbers of living episodes")
    parser.add_argument("--only", help="measure only systems whose name contains this text")
    options = parser.parse_args()
    living = [int(count) for count in options.living.split(",")]
    logging.disable()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the start")
    columns = {}
    for name, system in systems().items():
        if options.only is None or options.only in name:
            with system() as start:
                columns[name] = measure(start, living)
    names = list(columns)
    print(f"load average {os.getloadavg()[0]:.1f} at the end")
    print("| |", " | ".join(names), "|")
    print("|---" * (len(names) + 1) + "|")
    for row in columns[names[0]]:
        print(f"| {row} |", " | ".join(columns[name][row] for name in names), "|")
    print(f"sandbox, context 1 MB: {measure_parts(_SIZES['1 MB'])}")


if __name__ == "__main__":
    main()
