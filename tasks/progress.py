"""How a long stage shows how far it is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Steps(Progress):
    """The steps of one stage, on stderr; a context manager.

    Args:
        stage: its name, in front of each line.
        total: steps in all.
        line_every: steps between lines where there is no terminal.
    """

    def __init__(self, stage: str, total: int, line_every: int = 1) -> None:
        self._stage, self._total, self._line_every = stage, total, line_every
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[told]}"),
            console=Console(stderr=True),
        )
        self._bar = self.add_task(stage, total=total, told="")

    def begin_at(self, step: int) -> None:
        """Steps that an earlier run has done."""
        self.update(self._bar, completed=step)

    def done(self, step: int, told: str) -> None:
        """A step ended; `told` are its figures."""
        self.update(self._bar, completed=step, told=told)
        if not self.console.is_terminal and step % self._line_every == 0:
            self.say(f"step {step}/{self._total}  {told}")

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self.console.print(f"{self._stage}: {line}", highlight=False)


class Counted(Progress):
    """Rows of one stage whose number nobody knows beforehand, on stderr; a context manager.

    Args:
        stage: its name, in front of the bar.
        line_every: rows between lines where there is no terminal.
    """

    def __init__(self, stage: str, line_every: int = 500) -> None:
        self._stage, self._line_every = stage, line_every
        console = Console(stderr=True)
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed} rows"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar = self.add_task(stage, total=None)

    def done(self, rows: int) -> None:
        """So many rows are done."""
        self.update(self._bar, completed=rows)
        if not self.console.is_terminal and rows % self._line_every == 0:
            self.console.print(f"{self._stage}: {rows} rows", highlight=False)
