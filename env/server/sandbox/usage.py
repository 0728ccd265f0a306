"""Memory of one worker: what its end would free.

A fork shares its pages until somebody writes to them. A copied page adds nothing to the resident
size, so only the kernel's sum over all mappings (`smaps_rollup`) sees it. That sum costs more than
a short cell. Between two sums, page faults give an upper estimate: a worker that gets a page of
its own, new or copied, has faulted on it.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_EXACT_SHARE = 0.01
"""Limit of the CPU time for exact readings, as a share of the worker's."""
_COST_S = 0.0005
"""CPU seconds of a worker's first exact reading, as assumed."""
_FREED = 4 << 20
"""Bytes less in memory that call for an exact reading."""


@dataclass(frozen=True)
class MemoryUsage:
    """The kernel's cheap figures of a process."""

    resident: int
    """Bytes in memory, shared ones included."""
    faulted: int
    """Bytes of all pages on which it faulted since its start."""
    state: str = ""
    """Letter of `/proc/PID/stat`, such as T for a stopped process."""


def usage(pid: int) -> MemoryUsage | None:
    """The figures of a process; None if nobody can tell, or if it has no memory."""
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)  # cheaper than `open`
        try:
            fields = os.read(file, 4096).rpartition(b")")[2].split(None, 22)
        finally:
            os.close(file)
        faults = int(fields[7]) + int(fields[9])
        figures = MemoryUsage(int(fields[21]) * _PAGE, faults * _PAGE, fields[0].decode())
    except (OSError, IndexError, ValueError):
        return None
    return figures if figures.resident else None  # a dead process has no pages


def private(pid: int) -> int | None:
    """Bytes in memory or swap that no other process shares; None if this user may not read that."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    own = (line for line in lines if line.startswith(("Private_", "SwapPss:")))
    return sum(int(line.split()[1]) << 10 for line in own) or None


class Meter:
    """Upper estimate of a worker's memory, read exactly from time to time.

    Args:
        pid: its process id.
        now: its figures before it runs anything.
        own: bytes of its own at that moment.
        exact: whether `private` can be read; otherwise copied pages do not count.
        cpu_s: its CPU seconds at that moment.
    """

    def __init__(self, pid: int, now: MemoryUsage, own: int, exact: bool, cpu_s: float) -> None:
        self._pid = pid
        self._last = now
        self._own = own
        self._exact = exact
        self._cpu_s = cpu_s
        self._cost_s = _COST_S

    def read(self, now: MemoryUsage, cpu_s: float, exact: bool) -> int:
        """Bytes of its own.

        Args:
            now: its figures.
            cpu_s: its CPU seconds.
            exact: whether to read them exactly in any case.
        """
        due = (cpu_s - self._cpu_s) * _EXACT_SHARE > self._cost_s
        if self._exact and (exact or due or now.resident < self._last.resident - _FREED):
            started = time.thread_time()
            own = private(self._pid)
            self._cost_s = time.thread_time() - started
            if own is not None:
                self._last, self._own, self._cpu_s = now, own, cpu_s
        return self._own + added(self._last, now, self._own if self._exact else None)


def added(last: MemoryUsage, now: MemoryUsage, own: int | None) -> int:
    """Bytes that a process may have made its own since a reading.

    Args:
        last: its figures then.
        now: its figures.
        own: bytes of its own then; None if copied pages do not count.
    """
    grown = max(0, now.resident - last.resident)
    if own is None:
        return grown
    return grown + max(0, min(now.faulted - last.faulted - grown, last.resident - own))
