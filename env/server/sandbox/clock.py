"""The own time of a cell: wall time in which its code could have computed.

A cell that the machine holds up did nothing wrong. So the clock leaves out waiting for a processor
(`/proc/PID/schedstat`), stops (state T), and gaps in which the server itself did not run. Without
schedstat, own time is CPU time alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

TICK_S = 0.03
"""Seconds between two readings of a cell that runs."""
_LATE_S = 0.4
"""A reading that is later than this after its tick means that the server did not run."""
_ASLEEP_CPU_S = 0.001
"""CPU seconds of a tick below which a sleeping worker did nothing."""
_ASLEEP_TICKS = 2


def has_schedstat() -> bool:
    """Whether this kernel says how long a process waited for a processor."""
    return _waited_s(os.getpid()) is not None


@dataclass(frozen=True)
class Reading:
    """The kernel's figures of a worker at one moment."""

    cpu_s: float
    waited_s: float | None
    """Seconds in a run queue; None if the kernel does not say."""
    state: str
    """As of `MemoryUsage`; empty if the process is gone, or if nobody needs it."""


def read(pid: int, cpu_s: float, state: str = "") -> Reading:
    """The figures of a process, with its CPU seconds and its state as given."""
    return Reading(cpu_s, _waited_s(pid), state)


class CellClock:
    """Own seconds of one cell, from readings about `TICK_S` apart.

    Time between `pause` and `resume` does not count: the cell waits for a sub-call or for a slot.
    """

    def __init__(self) -> None:
        self.own_s = 0.0
        self.wall_s = 0.0
        """Seconds since the start, without pauses and without the host's reading."""
        self._at = 0.0
        self._last = Reading(0.0, None, "")
        self._asleep = 0
        self._computed = False

    def resume(self, now: float, reading: Reading) -> None:
        """Start to count. If the reading lacks `waited_s`, only CPU time counts until a tick.

        Args:
            now: seconds of a monotonic clock.
            reading: the worker's figures.
        """
        self._at, self._last, self._asleep = now, reading, 0

    def pause(self, now: float, cpu_s: float, reading_s: float) -> None:
        """Stop to count; of the time since the last tick, CPU time counts as own time."""
        self.wall_s += now - self._at - reading_s
        self.own_s += max(cpu_s - self._last.cpu_s, 0.0)
        self._at = now

    def due(self, now: float) -> bool:
        """Whether the next reading is due."""
        return now - self._at >= TICK_S

    def tick(self, now: float, reading: Reading, reading_s: float, waiting: bool) -> None:
        """Count the time since the last tick.

        Args:
            now: seconds of the monotonic clock.
            reading: the worker's figures.
            reading_s: seconds since the last tick in which the worker waited for the host.
            waiting: whether it sleeps although nobody owes it anything.
        """
        wall = now - self._at - reading_s
        last, self._last, self._at = self._last, reading, now
        self.wall_s += wall
        cpu = reading.cpu_s - last.cpu_s
        self._computed = cpu >= _ASLEEP_CPU_S
        self._asleep = self._asleep + 1 if waiting and not self._computed else 0
        own = min(wall, TICK_S) if wall > TICK_S + _LATE_S else wall
        # The kernel counts a wait for a processor when it is over. Until then, a worker that is
        # ready to run (R) has its CPU time alone.
        if reading.state in "RT" or reading.waited_s is None or last.waited_s is None:
            own = 0.0
        else:
            own -= reading.waited_s - last.waited_s
        self.own_s += max(own, cpu, 0.0)

    @property
    def asleep(self) -> bool:
        """Whether the last ticks found the worker asleep, without a reason."""
        return self._asleep >= _ASLEEP_TICKS

    @property
    def may_yield(self) -> bool:
        """Whether its slot may pass to another cell: the worker computed, or somebody stopped it.

        A sleeper keeps its slot for the second tick, which finds it asleep.
        """
        return self._computed or self._last.state == "T"

    @property
    def lost_s(self) -> float:
        """Seconds in which something other than the cell held it up."""
        return self.wall_s - self.own_s


def _waited_s(pid: int) -> float | None:
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None
