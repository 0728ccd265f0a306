"""A row on its way to the data: a draft, then a candidate, then a problem; or its faults.

`read.py` makes drafts, `place.py` makes candidates of them, and `split.py` problems.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from env.problems.schema import Level, Paper, Problem, Split
from env.settings import CHILD_CONTEXT_CHARS

MAX_TEXT_CHARS = CHILD_CONTEXT_CHARS
"""Characters of one paper: as many as a child may be given."""


@dataclass(frozen=True)
class Rejected:
    """A fault of a row: its place, the reason and the remedy.

    Text of rows ends up in messages, so unprintable characters are shown as escapes: they could
    control a terminal.
    """

    row: str
    """Name of the row, such as `problems.jsonl:17`."""
    field: str
    """Path within the row, such as `papers[2].text`."""
    reason: str
    remedy: str

    def __post_init__(self) -> None:
        for name, text in vars(self).items():
            shown = (char if char.isprintable() else ascii(char)[1:-1] for char in text)
            object.__setattr__(self, name, "".join(shown))

    def __str__(self) -> str:
        return f"{self.row}: {self.field}: {self.reason}; {self.remedy}"


class RowFault(ValueError):
    """Reason and remedy of a fault whose place only the caller knows."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy

    def at(self, row: str, field: str) -> Rejected:
        """The fault with its place."""
        return Rejected(row, field, str(self), self.remedy)


@dataclass(frozen=True)
class ProblemBounds:
    """Limits of a problem from any source."""

    min_span_chars: int
    """rewards.min_span_chars: shorter spans are ignored in answers, so they cannot be gold."""
    max_gold_papers: int
    """env.limits.max_children: one call must be able to hand out all papers with evidence."""
    max_text_chars: int = MAX_TEXT_CHARS
    """Characters of one paper."""
    max_papers: int = 64
    """Papers of one problem."""


@dataclass(frozen=True)
class Place:
    """Location of a fact as a row gives it: a quote, or characters [start, end)."""

    field: str
    paper_id: str
    quote: str | None = None
    start: int = 0
    end: int = 0


@dataclass(frozen=True)
class Draft:
    """A row with valid types; each fact is a list of places, any of which is right."""

    row: str
    question: str = ""
    papers: Sequence[Paper] = ()
    facts: Sequence[Sequence[Place]] = ()
    papers_field: str = "papers"
    problem_id: str | None = None
    collection_id: str | None = None
    split: Split | None = None
    difficulty: Level | None = None
    faults: Sequence[Rejected] = ()
    """Those that are known; the other parts of the row are still checked."""


@dataclass(frozen=True)
class Candidate:
    """A problem without its final split."""

    row: str
    problem: Problem
    split: Split | None
    """Split that the row sets; None if it sets none."""


@dataclass
class Quotes:
    """Numbers of quotes of a data set by how they were found, those of rejected rows included."""

    exact: int = 0
    normalised: int = 0
    offsets: int = 0
    rejected: int = 0


@dataclass(frozen=True)
class Found:
    """Content of a source."""

    problems: list[Problem] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    """All faults in the order of the rows; a row may have several."""
    left_out: list[Rejected] = field(default_factory=list)
    """Unreadable documents of a folder; only the rows that quote one are rejected."""
    quotes: Quotes = field(default_factory=Quotes)

    @property
    def rejected_rows(self) -> int:
        """Number of rows with at least one fault."""
        return len({fault.row for fault in self.rejected})


def did_you_mean(wrong: str, names: Iterable[str]) -> str | None:
    """The most similar known name; None if none is similar."""
    return next(iter(get_close_matches(wrong, names, n=1)), None)
