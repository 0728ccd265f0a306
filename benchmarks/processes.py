"""CPU time and memory of a process and its descendants, read from the kernel."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

_GONE = (FileNotFoundError, ProcessLookupError)
"""Errors of a process or thread that has just ended."""


def tree(pid: int) -> list[int]:
    """Pids of a process and its descendants; psutil would add milliseconds to a measurement."""
    found = [pid]
    with contextlib.suppress(*_GONE):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(*_GONE):
                for child in (task / "children").read_text().split():
                    found += tree(int(child))
    return found


def cpu_of(pids: Iterable[int]) -> float:
    """CPU seconds of living processes."""
    seconds = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            seconds += time.clock_gettime((~pid << 3) | 2)
    return seconds


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and its descendants, including reaped ones."""
    pids = tree(pid)
    ticks = 0
    for one in pids:
        with contextlib.suppress(*_GONE):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[13:15]))
    return cpu_of(pids) + ticks / os.sysconf("SC_CLK_TCK")


def pss_mb(pids: Iterable[int]) -> float:
    """Proportional set size of processes, in MB."""
    return sum(_kilobytes(f"/proc/{pid}/smaps_rollup", "Pss") for pid in pids) / 1024


def peak_mb(pid: int) -> float:
    """Largest resident set of a process so far, in MB; 0 after its end."""
    return _kilobytes(f"/proc/{pid}/status", "VmHWM") / 1024


def _kilobytes(path: str, field: str) -> int:
    with contextlib.suppress(*_GONE):
        if found := re.search(rf"^{field}:\s+(\d+)", Path(path).read_text(), re.M):
            return int(found[1])
    return 0
