"""The right to run a cell: a bounded number of slots, dealt to sessions in turn.

A cell begins in the front lane, where most cells end within milliseconds. A longer one moves to
the background lane, and gives its slot back whenever another cell waits.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque

FRONT_CPU_S = 0.1
"""CPU seconds of a cell in the front lane."""
_BACKGROUND_SHARE = 4
"""Every so many grants, the background lane comes first, so that it never starves."""

_DEFERRED = 4096
"""Sessions that are remembered; one that has ended is forgotten with all others."""


class _Waiter:
    def __init__(self) -> None:
        self.granted = threading.Event()


class _Lane:
    """Waiting cells by session; each grant takes the first of the next session."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[object, deque[_Waiter]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._sessions.values()))

    def add(self, session: object, waiter: _Waiter) -> None:
        self._sessions.setdefault(session, deque()).append(waiter)

    def take(self) -> _Waiter:
        session, waiters = self._sessions.popitem(last=False)
        waiter = waiters.popleft()
        if waiters:
            self._sessions[session] = waiters  # behind all others
        return waiter


class Slots:
    """Limits the cells that run at the same time. Thread-safe.

    Args:
        count: slots, at least 1.
    """

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = count
        self._front = _Lane()
        self._background = _Lane()
        self._grants = 0
        self._deferred: set[int] = set()

    def enter(self, session: object, background: bool = False) -> None:
        """Wait for a slot.

        Args:
            session: whose turn it is; sessions get slots in turn.
            background: the lane.
        """
        with self._lock:
            if id(session) in self._deferred:
                self._deferred.remove(id(session))
                background = True
            if self._free and not self._front and not self._background:
                self._free -= 1
                return
            waiter = _Waiter()
            (self._background if background else self._front).add(session, waiter)
            self._grant()
        waiter.granted.wait()

    def defer(self, session: object) -> None:
        """Put the session's next cell into the background lane: the last one held a slot asleep."""
        with self._lock:
            if len(self._deferred) >= _DEFERRED:
                self._deferred.clear()
            self._deferred.add(id(session))

    def leave(self) -> None:
        """Give the slot back."""
        with self._lock:
            self._free += 1
            self._grant()

    def __len__(self) -> int:
        """Number of cells that wait for a slot."""
        with self._lock:
            return len(self._front) + len(self._background)

    @property
    def wanted(self) -> bool:
        """Whether a cell waits for a slot."""
        return bool(self._front or self._background)

    def _grant(self) -> None:
        while self._free and (self._front or self._background):
            self._grants += 1
            turn = self._grants % _BACKGROUND_SHARE == 0
            behind = self._background and (turn or not self._front)
            self._free -= 1
            (self._background if behind else self._front).take().granted.set()
