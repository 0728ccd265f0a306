"""What a stage does, how far it is and how long it will take: lines on stderr.

    with doing("rollout", "episodes", 64, at_once=32) as work:
        play(..., on_episode=lambda episode: work.advance(seconds=episode.seconds))

Lines come by time and not by count: the first one `FIRST_S` seconds after the stage began, the
next ones every `EVERY_S`, so a quick stage writes none. A thread writes them, because a large model
can take minutes to load or to read its first prompts, and no event comes meanwhile.

What is done nests: `train: 3 of 24 steps, about 40 min left; rollout: 12 of 64 episodes, 210 turns,
about 60 s left`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

from rich.console import Console

T = TypeVar("T")

FIRST_S = 15.0
"""Seconds from the beginning of a stage to its first line."""
EVERY_S = 30.0
"""Seconds between two lines."""
POLL_S = 1.0
"""Seconds between two looks at the clock."""

_current: Reporter | None = None
"""Reporter of the stage that this process runs."""


@dataclass(eq=False)
class Work:
    """One thing that a stage does, as far as it is done."""

    what: str
    """Name; empty for the stage's own steps."""
    unit: str = ""
    """What is counted, in the plural."""
    total: int | None = None
    """Number of units; None if it is unknown."""
    at_once: int = 1
    """Units in work at the same time."""
    expected_s: float | None = None
    """Seconds that the whole takes, where no unit is seen from here."""
    clock: Callable[[], float] = time.monotonic
    """Current time in seconds."""
    done: int = 0
    turns: int = 0

    def __post_init__(self) -> None:
        self._first, self._busy = 0, 0.0
        self.began = self._last = self.clock()

    def begin_at(self, done: int) -> None:
        """Set the units that an earlier run has finished."""
        self.done = self._first = done

    def reach(self, done: int) -> None:
        """Note the number of finished units, where nothing says how many they will be."""
        self.done = done

    def advance(self, seconds: float | None = None) -> None:
        """Note that a unit is finished, which took so many seconds; default: since the last one."""
        now = self.clock()
        self._busy += now - self._last if seconds is None else seconds
        self._last = now
        self.done += 1

    def left_s(self) -> float | None:
        """Seconds that are left if the other units are like the finished ones; None before any.

        What has overrun its time by some seconds is expected to take as many more.
        """
        since = self.clock() - self._last
        if self.expected_s is not None:
            return abs(self.expected_s - since)
        finished, to_come = self.done - self._first, (self.total or 0) - self.done
        if finished < 1 or to_come < 1:
            return None
        each = self._busy / finished / max(1, self.at_once)
        return each * (to_come - 1) + abs(each - since)

    def __str__(self) -> str:
        """Name, and how far it is, such as `3 of 24 steps`; no count if nothing is counted."""
        counts = [] if self.total is None else [f"{self.done} of {self.total} {self.unit}"]
        if self.total is None and self.done:
            counts = [f"{self.done} {self.unit}"]
        counts += [f"{self.turns} turns"] if self.turns else []
        left = self.left_s()
        counts += [] if left is None else [f"{_in_words(left)} left"]
        return ": ".join(filter(None, (self.what, ", ".join(counts))))


class Reporter:
    """Writes the lines of one stage; a context manager.

    Args:
        name: name of the stage, in front of each line.
        quiet: write nothing.
        console: where to write; default: stderr.
        clock: current time in seconds.
    """

    def __init__(
        self,
        name: str,
        *,
        quiet: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.clock, self.quiet = name, clock, quiet
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self.works: list[Work] = []
        self._began = clock()
        self._next = self._began + FIRST_S
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch_clock, name="progress", daemon=True)

    def __enter__(self) -> Reporter:
        if not self.quiet:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(POLL_S)

    def _watch_clock(self) -> None:
        while not self._ended.wait(POLL_S):
            self.tick()

    def tick(self) -> None:
        """Write a line if it is time for one."""
        now = self.clock()
        if now < self._next:
            return
        works = list(self.works)
        parts = ["; ".join(filter(None, map(str, works)))]
        if all(work.left_s() is None for work in works):
            parts.append(f"{_in_words(now - (works[0].began if works else self._began))} so far")
        self.say(", ".join(filter(None, parts)))

    def say(self, text: str) -> None:
        """Write a line now, unless another stage speaks in place of this one."""
        self._next = self.clock() + EVERY_S
        if not self.quiet and _current in (None, self):
            name = f"{self.name}: " if self.name else ""
            self.console.print(f"{name}{text}", markup=False)


@contextmanager
def stage(name: str, *, quiet: bool = False) -> Iterator[Reporter]:
    """Report what this process does in the block as the work of a stage; one around it is quiet."""
    global _current  # a process runs one stage at a time
    before = _current
    with Reporter(name, quiet=quiet) as _current:
        try:
            yield _current
        finally:
            _current = before


@contextmanager
def doing(
    what: str,
    unit: str = "",
    total: int | None = None,
    *,
    at_once: int = 1,
    expected_s: float | None = None,
) -> Iterator[Work]:
    """Show what is done while the block runs, also outside of a stage; arguments as in `Work`."""
    with stage("") if _current is None else nullcontext(_current) as reporter:
        work = Work(what, unit, total, at_once, expected_s, reporter.clock)
        reporter.works.append(work)
        try:
            yield work
        finally:
            reporter.works.remove(work)


def counted(what: str, items: Sequence[T], unit: str = "batches") -> Iterator[T]:
    """The items, while it is shown how many of them are finished."""
    with doing(what, unit, len(items)) as work:
        for item in items:
            yield item
            work.advance()


def say(text: str) -> None:
    """Write a line of the stage."""
    with stage("") if _current is None else nullcontext(_current) as reporter:
        reporter.say(text)


def _in_words(seconds: float) -> str:
    """A duration as it is estimated: rounded, in seconds, minutes or hours."""
    if seconds < 10:
        return "a few seconds"
    if seconds < 100:
        return f"about {round(seconds, -1):.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"
