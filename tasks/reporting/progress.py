"""Progress of a long stage: a bar on a terminal, occasional lines elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Steps(Progress):
    """Progress of a stage's steps on stderr; a context manager.

    Args:
        stage: name of the stage, in front of each line.
        total: number of steps.
        line_every: steps between lines without a terminal.
    """

    def __init__(self, stage: str, total: int, line_every: int = 1) -> None:
        self._stage, self._total, self._line_every = stage, total, line_every
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[figures]}"),
            console=Console(stderr=True),
        )
        self._bar = self.add_task(stage, total=total, figures="")

    def begin_at(self, step: int) -> None:
        """Set the number of steps of an earlier run."""
        self.update(self._bar, completed=step)

    def done(self, step: int, figures: str) -> None:
        """Show the end of a step with its figures."""
        self.update(self._bar, completed=step, figures=figures)
        if not self.console.is_terminal and step % self._line_every == 0:
            self.say(f"step {step}/{self._total}  {figures}")

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self.console.print(f"{self._stage}: {line}", highlight=False)


class Counted(Progress):
    """Progress of a stage with an unknown number of rows, on stderr; a context manager.

    Args:
        stage: name of the stage, in front of the bar.
        line_every: rows between lines without a terminal.
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
        """Show the number of finished rows."""
        self.update(self._bar, completed=rows)
        if not self.console.is_terminal and rows % self._line_every == 0:
            self.console.print(f"{self._stage}: {rows} rows", highlight=False)
