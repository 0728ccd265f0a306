"""The right to run a cell: a bounded number of slots, shared between sessions by time.

A free slot goes to the waiting session that has used the least slot time. Being idle earns no
credit: a session that joins or returns starts at the current fair level, which rises as if each
session had got its share of all slots. A session that is ahead waits until its share catches up,
and no longer. A long cell is measured now and then, and gives its slot back if another session is
behind; while short cells come, long ones have half of the slots at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

_RECENT_S = 0.1
"""Seconds after the last short cell in which long ones have half of the slots."""
_REMEMBERED = 4096
"""Sessions after which those that are not above the level are forgotten."""


@dataclass(eq=False)
class SlotUse:
    """A cell's use of a slot, or its wait for one.

    Args:
        session: who pays for it.
    """

    session: int
    is_long: bool = False
    """Whether its cell has computed for so long that it may only have some of the slots."""
    level: float = 0.0
    """The common level when it began to wait."""
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
        self._count = self._free = count
        self._waiting: list[SlotUse] = []
        self._spent: dict[int, float] = {}
        """Seconds of each session that is above the level."""
        self._level = 0.0
        self._long = 0
        """Slots that long cells hold."""
        self._last_short = -_RECENT_S

    def enter(self, session: object, is_long: bool = False) -> SlotUse:
        """Wait for a slot; `session` pays for it."""
        turn = SlotUse(id(session), is_long)
        self._wait(turn)
        return turn

    def leave(self, turn: SlotUse) -> None:
        """Give the slot back, and pay for it."""
        with self._lock:
            self._pay(turn)
            self._free += 1
            self._long -= turn.is_long
            self._grant()

    def is_over(self, turn: SlotUse, is_long: bool = True) -> bool:
        """Pay for a slot that is in use; return whether the cell must give it back now.

        Args:
            turn: the use of the slot.
            is_long: whether its cell is long by now.
        """
        with self._lock:
            self._pay(turn)
            self._long += is_long and not turn.is_long
            turn.is_long |= is_long
            self._grant()
            mine = self._seconds(turn)
            if turn.is_long and self._long > self._most_long():
                return True
            return any(self._seconds(waiting) < mine for waiting in self._waiting)

    def give_way(self, turn: SlotUse) -> None:
        """Give the slot back, and wait for one again."""
        self.leave(turn)
        self._wait(turn)

    def __len__(self) -> int:
        """Number of cells that wait for a slot."""
        with self._lock:
            return len(self._waiting)

    def _wait(self, turn: SlotUse) -> None:
        turn.granted.clear()
        with self._lock:
            turn.level = self._level
            if not turn.is_long:
                self._last_short = self._now()
            self._waiting.append(turn)
            self._grant()
        turn.granted.wait()
        turn.since = self._now()

    def _seconds(self, turn: SlotUse) -> float:
        return max(turn.level, self._spent.get(turn.session, 0.0))

    def _pay(self, turn: SlotUse) -> None:
        now = self._now()
        used = now - turn.since
        turn.since = now
        self._spent[turn.session] = self._seconds(turn) + used
        self._level += used / (self._count - self._free + len(self._waiting))
        if len(self._spent) >= _REMEMBERED:
            self._spent = {who: s for who, s in self._spent.items() if s > self._level}

    def _most_long(self) -> int:
        recent = self._now() - self._last_short < _RECENT_S
        return max(1, self._count // 2) if recent else self._count

    def _grant(self) -> None:
        while self._free:
            full = self._long >= self._most_long()
            waiting = [turn for turn in self._waiting if not (full and turn.is_long)]
            if not waiting:
                return
            turn = min(waiting, key=self._seconds)
            self._waiting.remove(turn)
            self._free -= 1
            self._long += turn.is_long
            turn.granted.set()
