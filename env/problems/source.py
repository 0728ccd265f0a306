"""What a source hands to `tasks/prepare.py`: problems, and the rows it had to reject.

Neighbours: `synthetic.py`, `hub.py` and `files.py` are the sources; `drafts.py` makes problems
of what the last two read, `splits.py` deals them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field

from env.problems.align import Quotes
from env.problems.schema import Problem, Split

Progress = Callable[[int], None]
"""Called with how many rows are done."""


@dataclass(frozen=True)
class Rejected:
    """A fault of a row that is no problem: where, what, and how to mend it.

    What rows hold ends up in messages: characters that steer a terminal, or are none, are shown
    as escapes.
    """

    row: str
    """Such as `problems.jsonl:17`, or a problem's id."""
    field: str
    """Path within the row, such as `papers[2].text`."""
    reason: str
    remedy: str

    def __post_init__(self) -> None:
        for name, text in vars(self).items():
            object.__setattr__(self, name, "".join(map(_printable, text)))

    def __str__(self) -> str:
        return f"{self.row}: {self.field}: {self.reason}; {self.remedy}"

    def as_dict(self) -> dict[str, str]:
        """For the report."""
        return asdict(self)


def _printable(char: str) -> str:
    return char if char.isprintable() else ascii(char)[1:-1]


@dataclass(frozen=True)
class Bounds:
    """What a problem must keep to, whatever its source; each is a setting of another section."""

    min_span_chars: int
    """rewards.min_span_chars: shorter spans are ignored in answers, so they cannot be gold."""
    max_text_chars: int
    """validate.max_text_chars, of one paper."""
    max_papers: int
    """validate.max_papers, of one problem."""
    max_gold_papers: int
    """env.limits.max_children: one call must be able to hand out all papers with evidence."""


@dataclass(frozen=True)
class Candidate:
    """A problem that has not been dealt to a split yet."""

    row: str
    problem: Problem
    split: Split | None
    """As its row says; None when it says nothing."""


@dataclass(frozen=True)
class Found:
    """All that a source holds."""

    problems: list[Problem] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    """Every fault; a row may have several."""
    left_out: list[Rejected] = field(default_factory=list)
    """Documents of a folder that could not be read; only the rows that quote one are rejected."""
    quotes: Quotes = field(default_factory=Quotes)

    @property
    def rejected_rows(self) -> int:
        """How many rows have at least one fault."""
        return len({fault.row for fault in self.rejected})


class Repetitions:
    """Tells what repeats an earlier problem; the first of two stays."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        self._asked: dict[tuple[str, frozenset[str]], str] = {}

    def fault(self, row: str, problem: Problem) -> Rejected | None:
        """What `problem` repeats; one that repeats nothing is remembered."""
        asked = (problem.question, frozenset(paper.text for paper in problem.papers))
        if asked in self._asked:
            return Rejected(
                row,
                "question",
                f"the same papers were asked the same question in {self._asked[asked]}",
                "delete one of both rows, or put all evidence into one",
            )
        if problem.problem_id in self._ids:
            return Rejected(
                row,
                "problem_id",
                f"{problem.problem_id!r} was there before, in {self._ids[problem.problem_id]}",
                "give each row an id of its own, or none",
            )
        self._ids[problem.problem_id] = row
        self._asked[asked] = row
        return None


def distinct(candidates: Iterable[Candidate]) -> tuple[list[Candidate], list[Rejected]]:
    """The candidates without repetitions, and the rest with what they repeat."""
    seen = Repetitions()
    kept: list[Candidate] = []
    rejected: list[Rejected] = []
    for candidate in candidates:
        fault = seen.fault(candidate.row, candidate.problem)
        if fault is None:
            kept.append(candidate)
        else:
            rejected.append(fault)
    return kept, rejected
