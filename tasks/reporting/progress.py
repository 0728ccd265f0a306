"""What a stage does, how far it is and how long it will take: lines on stderr, a bar on a terminal.

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
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

T = TypeVar("T")

FIRST_S = 15.0
"""Seconds from the beginning of a stage to its first line."""
EVERY_S = 30.0
"""Seconds between two lines."""
POLL_S = 1.0
"""Seconds between two looks at the clock."""

_current: Reporter | None = None
"""Reporter of the stage that this process runs."""


class Work:
    """One thing that a stage does, as far as it is done.

    Args:
        what: name; empty for the stage's own steps.
        unit: what is counted, in the plural.
        total: number of units; None if it is unknown.
        at_once: units in work at the same time.
        expected_s: seconds that the whole takes, where no unit is seen from here.
        clock: current time in seconds.
    """

    def __init__(
        self,
        what: str,
        unit: str = "",
        total: int | None = None,
        *,
        at_once: int = 1,
        expected_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.what, self.unit, self.total = what, unit, total
        self.done, self.turns, self.figures = 0, 0, ""
        self.changed: Callable[[], None] = lambda: None
        self._at_once, self._expected_s, self._clock = max(1, at_once), expected_s, clock
        self._first, self._busy = 0, 0.0
        self.began = self._last = clock()

    def begin_at(self, done: int) -> None:
        """Set the units that an earlier run has finished."""
        self.done = self._first = done
        self.changed()

    def reach(self, done: int) -> None:
        """Note the number of finished units, where nothing says how many they will be."""
        self.done = done
        self.changed()

    def advance(self, *, seconds: float | None = None, figures: str = "") -> None:
        """Note that a unit is finished.

        Args:
            seconds: that it took; default: since the one before.
            figures: its result, shown on a terminal.
        """
        now = self._clock()
        self._busy += now - self._last if seconds is None else seconds
        self._last = now
        self.done += 1
        self.figures = figures
        self.changed()

    def turn(self) -> None:
        """Note that an agent wrote a turn: episodes that run side by side end late."""
        self.turns += 1
        self.changed()

    def left_s(self) -> float | None:
        """Seconds that are left if the other units are like the finished ones; None before any.

        What has overrun its time by some seconds is expected to take as many more.
        """
        since = self._clock() - self._last
        if self._expected_s is not None:
            return abs(self._expected_s - since)
        finished, to_come = self.done - self._first, (self.total or 0) - self.done
        if finished < 1 or to_come < 1:
            return None
        each = self._busy / finished / self._at_once
        return each * (to_come - 1) + abs(each - since)

    def count(self) -> str:
        """How far it is, such as `3 of 24 steps`; empty if nothing is counted."""
        counts = [] if self.total is None else [f"{self.done} of {self.total} {self.unit}"]
        if self.total is None and self.done:
            counts = [f"{self.done} {self.unit}"]
        counts += [f"{self.turns} turns"] if self.turns else []
        left = self.left_s()
        return ", ".join(counts if left is None else [*counts, f"{in_words(left)} left"])

    def __str__(self) -> str:
        """Name and count."""
        return ": ".join(filter(None, (self.what, self.count())))


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
        self._bars: Progress | None = None
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
        self._hide_bars()

    @property
    def shows_bar(self) -> bool:
        """Whether a bar on a terminal shows the work."""
        return self._bars is not None

    def _watch_clock(self) -> None:
        while not self._ended.wait(POLL_S):
            self.tick()

    def tick(self) -> None:
        """Write a line if it is time for one. A bar on a terminal needs none."""
        now = self.clock()
        if now < self._next or self._bars is not None:
            return
        works = list(self.works)
        parts = ["; ".join(filter(None, map(str, works)))]
        if all(work.left_s() is None for work in works):
            began = works[0].began if works else self._began
            parts.append(f"{in_words(now - began)} so far")
        self.say(", ".join(filter(None, parts)))

    def say(self, text: str) -> None:
        """Write a line now, above the bar, unless another stage speaks in place of this one."""
        self._next = self.clock() + EVERY_S
        if not self.quiet and _current in (None, self):
            name = f"{self.name}: " if self.name else ""
            self.console.print(f"{name}{text}", markup=False)

    @contextmanager
    def doing(self, work: Work) -> Iterator[Work]:
        """Show work while the block runs."""
        self.works.append(work)
        bar = self._show(work) if work.total and self.console.is_terminal else None
        try:
            yield work
        finally:
            self.works.remove(work)
            if bar is not None:
                self._finish(work, bar)

    def _show(self, work: Work) -> TaskID:
        if self._bars is None:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[count]}"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[figures]}"),
                console=self.console,
                disable=self.quiet,
            )
            self._bars.start()
        bars = self._bars
        bar = bars.add_task(work.what or self.name, total=work.total, count="", figures="")

        def changed() -> None:
            bars.update(bar, completed=work.done, count=work.count(), figures=work.figures)

        work.changed = changed
        changed()
        return bar

    def _finish(self, work: Work, bar: TaskID) -> None:
        """Remove a bar; one that shows a result stays."""
        assert self._bars is not None
        if not work.figures:
            self._bars.remove_task(bar)
        if not any(other.total for other in self.works):
            self._hide_bars()

    def _hide_bars(self) -> None:
        if self._bars is not None:
            self._bars.live.transient = not self._bars.tasks
            self._bars.stop()
            self._bars = None


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
        work = Work(what, unit, total, at_once=at_once, expected_s=expected_s, clock=reporter.clock)
        with reporter.doing(work):
            yield work


def counted(what: str, items: Sequence[T], unit: str = "batches") -> Iterator[T]:
    """The items, while it is shown how many of them are finished."""
    with doing(what, unit, len(items)) as work:
        for item in items:
            yield item
            work.advance()


def say(text: str) -> None:
    """Write a line of the stage."""
    if _current is None:
        with stage("") as alone:
            alone.say(text)
    else:
        _current.say(text)


def result(text: str) -> None:
    """Write a line with the result of a step, unless a bar shows it."""
    if _current is None or not _current.shows_bar:
        say(text)


def in_words(seconds: float) -> str:
    """A duration as it is estimated: rounded, in seconds, minutes or hours."""
    if seconds < 10:
        return "a few seconds"
    if seconds < 100:
        return f"about {round(seconds, -1):.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"
