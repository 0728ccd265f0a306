"""One memory budget for all living REPLs, by what their ends would free and not by what they may.

A worker's memory changes only while its cell runs, and is read then (`usage.py`). Over the budget,
the worker that holds most beyond its fair share is ended. A session's share is the budget over the
sessions, a worker's share that of its session over its workers. So nobody within a share is ended.

Each worker is a process, and holds a descriptor of the server. If there are too many workers, the
session with the most of them loses the one that holds most memory.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable


class Holding:
    """One worker, as the ledger knows it.

    Args:
        session: session that it belongs to.
        end: ends the worker of a holding and frees its descriptor; any thread may call it.
    """

    def __init__(self, session: object, end: Callable[[Holding], None]) -> None:
        self.session = session
        self.end = end
        self.bytes = 0
        self.evicted = False
        """Whether it was ended to make room."""


class Ledger:
    """Memory and number of all living workers. Thread-safe.

    Args:
        budget: bytes that they may hold together.
        most: number of them; None without a limit.
    """

    def __init__(self, budget: int, most: int | None = None) -> None:
        self.budget = budget
        self.most = most
        self._lock = threading.Lock()
        self._holdings: set[Holding] = set()
        self._workers: Counter[object] = Counter()
        self._total = 0

    @property
    def total(self) -> int:
        """Bytes that all workers hold."""
        return self._total

    def exceeds(self, holding: Holding, size: int) -> bool:
        """Whether all together would hold too much if this worker held so many bytes."""
        return self._total + size - holding.bytes > self.budget

    def note(self, holding: Holding, size: int) -> None:
        """Record what a worker holds now; end workers if they hold too much or are too many.

        Args:
            holding: the worker; the first call adds it.
            size: bytes.
        """
        victims = []
        with self._lock:
            if holding.evicted:
                return
            if holding not in self._holdings:
                self._holdings.add(holding)
                self._workers[holding.session] += 1
            self._total += size - holding.bytes
            holding.bytes = size
            while self.most is not None and len(self._holdings) > self.most:
                victims.append(self._evict(max(self._holdings, key=self._crowding)))
            while self._total > self.budget and len(self._holdings) > 1:
                victims.append(self._evict(max(self._holdings, key=self._excess)))
        for victim in victims:
            victim.end(victim)

    def drop(self, holding: Holding) -> None:
        """Forget a worker that has ended."""
        with self._lock:
            if holding in self._holdings:
                self._remove(holding)

    def within_share(self, holding: Holding) -> bool:
        """Whether a worker holds no more than its fair share."""
        with self._lock:
            return holding not in self._holdings or self._excess(holding) <= 0

    def _excess(self, holding: Holding) -> float:
        return holding.bytes - self.budget / len(self._workers) / self._workers[holding.session]

    def _crowding(self, holding: Holding) -> tuple[int, int]:
        return self._workers[holding.session], holding.bytes

    def _evict(self, holding: Holding) -> Holding:
        holding.evicted = True
        self._remove(holding)
        return holding

    def _remove(self, holding: Holding) -> None:
        self._holdings.remove(holding)
        self._total -= holding.bytes
        self._workers[holding.session] -= 1
        if not self._workers[holding.session]:
            del self._workers[holding.session]
