"""What a source hands to `tasks/prepare.py`: problems, and the rows it had to reject.

Neighbours: `synthetic.py`, `hub.py` and `files.py` are the sources.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from env.problems.schema import Problem


@dataclass(frozen=True)
class Rejected:
    """A row that is no problem: where, what, and how to mend it."""

    row: str
    """Such as `problems.jsonl:17`, or a problem's id."""
    field: str
    """Path within the row, such as `papers[2].text`."""
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.row}: {self.field}: {self.reason}; {self.remedy}"

    def as_dict(self) -> dict[str, str]:
        """For the report."""
        return asdict(self)


@dataclass(frozen=True)
class Found:
    """All that a source holds."""

    problems: list[Problem] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
