"""What the REPL sandbox costs, beside `exec` in the server's own process.

    python -m benchmarks.sandbox [--rounds 200] [--living 100]

Medians in milliseconds; memory is what a REPL adds (private pages, summed over the workers).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from env.server.sandbox import Repl, SandboxHost, SubCall
from env.settings import LimitSettings, SandboxSettings


def median_ms(action: Callable[[], object], rounds: int) -> float:
    """Median wall time of `action` in milliseconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1000


def open_one(host: SandboxHost, context: dict[str, str], kept: list[Repl]) -> None:
    """Open a REPL and keep it."""
    kept.append(host.open(context))


def cpu_s(pid: int) -> float:
    """CPU seconds of a living process."""
    return time.clock_gettime((~pid << 3) | 2)


def private_mb(repl: Repl) -> float:
    """Megabytes that this worker shares with nobody; 0 where the kernel does not tell."""
    worker = repl._worker
    try:
        text = Path(f"/proc/{worker.pid if worker else 0}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    lines = [line.split() for line in text.splitlines() if line.startswith("Private_")]
    return sum(int(fields[1]) for fields in lines) / 1024


def measure(rounds: int, living: int) -> list[tuple[str, str]]:
    """Rows of the table."""
    limits, settings = LimitSettings(), SandboxSettings()
    rows = []

    def start() -> None:
        SandboxHost(limits, settings).close()

    rows.append(("start and close a host", f"{median_ms(start, 5):.1f} ms"))
    host = SandboxHost(limits, settings)
    small, large = {"p1": "x" * 1000}, {"p1": "x" * 1_000_000}
    kept: list[Repl] = []
    for name, context in (("1 KB", small), ("1 MB", large)):
        zygote = cpu_s(host._zygote.pid)
        opened = median_ms(partial(open_one, host, context, kept), living)
        rows.append((f"open a REPL, context {name}", f"{opened:.2f} ms"))
        used = cpu_s(host._zygote.pid) - zygote
        used += sum(cpu_s(repl._worker.pid) for repl in kept[-living:] if repl._worker)
        rows.append(
            (f"its CPU, zygote and worker, context {name}", f"{used / living * 1000:.2f} ms")
        )
        memory = sum(map(private_mb, kept[-living:])) / living
        rows.append((f"its private memory, context {name}", f"{memory:.1f} MB"))
    repl = host.open(small)
    repl.run("x = 0")
    rows.append(("exec `x = 1`", f"{median_ms(lambda: repl.run('x = 1'), rounds):.3f} ms"))
    found = median_ms(lambda: repl.run("search(context, 'y')"), rounds)
    rows.append(("exec a search in 1 KB", f"{found:.3f} ms"))
    event = repl.run("while True: llm_query('a')")
    assert isinstance(event, SubCall)
    rows.append(("sub-call and answer", f"{median_ms(lambda: repl.resume('b'), rounds):.3f} ms"))
    closing = iter(kept)
    closed = median_ms(lambda: next(closing).close(), living)
    rows.append(("close a REPL", f"{closed:.2f} ms"))
    host.close()
    names: dict[str, object] = {}
    rows.append(
        ("exec `x = 1` in process", f"{median_ms(lambda: exec('x = 1', names), rounds):.3f} ms")
    )
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--living", type=int, default=50, help="REPLs open at once, twice")
    arguments = parser.parse_args()
    table = Table("what", "cost", title="REPL sandbox")
    for row in measure(arguments.rounds, arguments.living):
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
