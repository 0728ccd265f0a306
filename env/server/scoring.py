"""Turns for scoring: one episode at a time, the smallest first.

Scoring runs in the interpreter of the server, outside every limit of a cell. Many at once would
make each message of other sessions wait for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from threading import Condition


class ScoringTurns:
    """Lets one thread at a time score an episode. Thread-safe."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._waiting: list[tuple[int, int]] = []
        self._numbers = count()
        self._busy = False

    @contextmanager
    def turn(self, size: int) -> Iterator[None]:
        """Wait until no other thread scores, and none with a smaller episode waits."""
        with self._changed:
            ticket = size, next(self._numbers)
            heappush(self._waiting, ticket)
            self._changed.wait_for(lambda: not self._busy and self._waiting[0] == ticket)
            heappop(self._waiting)
            self._busy = True
        try:
            yield
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
