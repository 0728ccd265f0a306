"""Result types of the sources that `tasks/prepare.py` reads: problems and rejected rows.

The sources are `env/problems/fields.py`, `hub.py` and `files.py`. `drafts.py` makes problems of
the rows that the last two read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from env.problems.schema import Problem, Split
from env.settings import CHILD_CONTEXT_CHARS
from tasks.data.align import Quotes

OnProgress = Callable[[int], None]
"""Called with the number of finished rows."""


MAX_MB = 64
"""Megabytes of one line or one document, so that reading one does not fill the memory."""
MAX_TEXT_CHARS = CHILD_CONTEXT_CHARS
"""Characters of one paper: as many as a child may be given."""


@dataclass(frozen=True)
class Rejected:
    """A fault of a row: its place, the reason and the remedy.

    Text of rows ends up in messages, so unprintable characters are shown as escapes: they could
    control a terminal.
    """

    row: str
    """Name of the row, such as `problems.jsonl:17`, or a problem's id."""
    field: str
    """Path within the row, such as `papers[2].text`."""
    reason: str
    remedy: str

    def __post_init__(self) -> None:
        for name, text in vars(self).items():
            object.__setattr__(self, name, "".join(map(_printable, text)))

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


def _printable(char: str) -> str:
    return char if char.isprintable() else ascii(char)[1:-1]


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
class Candidate:
    """A problem without its final split."""

    row: str
    problem: Problem
    split: Split | None
    """Split that the row sets; None if it sets none."""


@dataclass(frozen=True)
class Found:
    """Content of a source."""

    problems: list[Problem] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    """All faults; a row may have several."""
    left_out: list[Rejected] = field(default_factory=list)
    """Unreadable documents of a folder; only the rows that quote one are rejected."""
    quotes: Quotes = field(default_factory=Quotes)

    @property
    def rejected_rows(self) -> int:
        """Number of rows with at least one fault."""
        return len({fault.row for fault in self.rejected})


def distinct(candidates: Iterable[Candidate]) -> tuple[list[Candidate], list[Rejected]]:
    """Candidates without repetitions, of which the first stays, and the faults of the others."""
    ids: dict[str, str] = {}
    contents: dict[tuple[str, frozenset[str]], str] = {}
    originals: list[Candidate] = []
    rejected: list[Rejected] = []
    for candidate in candidates:
        row, problem = candidate.row, candidate.problem
        content = (problem.question, frozenset(paper.text for paper in problem.papers))
        if content in contents:
            reason = f"repeats {contents[content]}: the same question about the same papers"
            fix = "delete one of the two rows, or merge their evidence"
            rejected.append(Rejected(row, "question", reason, fix))
        elif problem.problem_id in ids:
            reason = f"{problem.problem_id!r} is already used in {ids[problem.problem_id]}"
            fix = "give each row a different id, or none"
            rejected.append(Rejected(row, "problem_id", reason, fix))
        else:
            ids[problem.problem_id] = contents[content] = row
            originals.append(candidate)
    return originals, rejected
