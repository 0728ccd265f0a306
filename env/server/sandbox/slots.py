"""The right to run a cell: a bounded number of slots, shared between sessions by time.

A free slot goes to the waiting session that has held slots for the least time. A session that was
away gets no more than the others for it. A long cell is measured now and then, and gives its slot
back if another session is behind. So a session that computes or sleeps without end takes as much
as each other session that waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

_REMEMBERED = 4096
"""Sessions whose time is kept; one that has ended is forgotten with all others."""


@dataclass(eq=False)
class Turn:
    """A cell's use of a slot, or its wait for one.

    Args:
        session: who pays for it.
    """

    session: int
    since: float = 0.0
    """Time of its start or of its last payment."""
    granted: threading.Event = field(default_factory=threading.Event)


class Slots:
    """Limits the cells that run at the same time. Thread-safe.

    Args:
        count: slots, at least 1.
        now: seconds of a monotonic clock.
    """

    def __init__(self, count: int, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._free = count
        self._waiting: list[Turn] = []
        self._spent: dict[int, float] = {}
        """Seconds of each session, counted from a common level that rises."""
        self._level = 0.0
        """Seconds of the session that got the last slot: nobody who waits is further behind."""

    def enter(self, session: object) -> Turn:
        """Wait for a slot; `session` pays for it."""
        turn = Turn(id(session))
        self._wait(turn)
        return turn

    def leave(self, turn: Turn) -> None:
        """Give the slot back, and pay for it."""
        with self._lock:
            self._pay(turn)
            self._free += 1
            self._grant()

    def is_over(self, turn: Turn) -> bool:
        """Pay for a slot that is in use; return whether a session that waits is further behind."""
        with self._lock:
            self._pay(turn)
            mine = self._seconds(turn)
            return any(self._seconds(waiting) < mine for waiting in self._waiting)

    def give_way(self, turn: Turn) -> None:
        """Give the slot back, and wait for one again."""
        self.leave(turn)
        self._wait(turn)

    def __len__(self) -> int:
        """Number of cells that wait for a slot."""
        with self._lock:
            return len(self._waiting)

    def _wait(self, turn: Turn) -> None:
        turn.granted.clear()
        with self._lock:
            self._waiting.append(turn)
            self._grant()
        turn.granted.wait()
        turn.since = self._now()

    def _seconds(self, turn: Turn) -> float:
        return max(self._level, self._spent.get(turn.session, 0.0))

    def _pay(self, turn: Turn) -> None:
        now = self._now()
        if len(self._spent) >= _REMEMBERED:
            self._spent.clear()
        self._spent[turn.session] = self._seconds(turn) + now - turn.since
        turn.since = now

    def _grant(self) -> None:
        while self._free and self._waiting:
            turn = min(self._waiting, key=self._seconds)
            self._waiting.remove(turn)
            self._level = self._seconds(turn)
            self._free -= 1
            turn.granted.set()
