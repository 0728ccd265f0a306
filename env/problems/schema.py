"""One problem: a question about a collection of papers, and its gold evidence.

Gold stays on the server: of a `Problem` a client may only ever see its `ProblemCard`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from env.settings import Settings

Split = Literal["train", "validation", "test"]
Tier = Literal["singleton", "focused", "mid_range", "wide_net"]
Level = Literal["easy", "medium", "hard"]
"""Difficulties of the sources `hub` and `files`."""


class Paper(Settings):
    """One document; `text` is what the REPL's `context` holds, and what spans index."""

    paper_id: str = Field(min_length=1)
    title: str
    abstract: str
    text: str = Field(min_length=1)
    canary: bool = False
    """It tells its reader what to answer: nobody who quotes it has read for the question."""


class Span(Settings):
    """Characters [start, end) of one paper's text; `text` is that very slice."""

    paper_id: str
    start: int = Field(ge=0)
    end: int = Field(gt=0)
    text: str


class Fact(Settings):
    """One fact of the gold answer; its spans are alternatives, any of them is right."""

    fact_id: str
    spans: tuple[Span, ...] = Field(min_length=1)


class Problem(Settings):
    """One row of the data."""

    problem_id: str = Field(min_length=1)
    group_id: str
    """Papers shared by several questions; splits are made by group."""
    split: Split
    difficulty: str
    tier: Tier
    question: str = Field(min_length=1)
    papers: tuple[Paper, ...] = Field(min_length=1)
    evidence: tuple[Fact, ...] = Field(min_length=1)

    @property
    def gold_papers(self) -> set[str]:
        """Papers that hold evidence."""
        return {span.paper_id for fact in self.evidence for span in fact.spans}


COLUMNS = (
    "problem_id",
    "group_id",
    "split",
    "difficulty",
    "tier",
    "question",
    "papers",
    "evidence",
)
"""Of a row as it is stored; the last two are JSON text, and all others plain strings."""

PUBLIC_COLUMNS = COLUMNS[:5]
"""What a client may read of the files."""


def to_row(problem: Problem) -> dict[str, str]:
    """A problem as it is stored: one string for each of `COLUMNS`."""
    row = problem.model_dump(mode="json", exclude_defaults=True)
    for name in ("papers", "evidence"):
        row[name] = json.dumps(row[name], ensure_ascii=False)
    return {name: row[name] for name in COLUMNS}


def from_row(row: Mapping[str, Any]) -> Problem:
    """The problem of a stored row.

    Raises:
        ValueError: a column is missing, or holds what no problem may hold (pydantic's
            ValidationError and a JSONDecodeError are ValueErrors).
    """
    missing = [name for name in COLUMNS if not isinstance(row.get(name), str)]
    if missing:
        raise ValueError(f"no text in {missing}")
    data = {name: row[name] for name in COLUMNS}
    for name in ("papers", "evidence"):
        data[name] = json.loads(data[name])
    return Problem.model_validate(data)


def tier_of(gold_papers: int) -> Tier:
    """1 paper: singleton, 2: focused, 3-4: mid_range, 5 and more: wide_net."""
    if gold_papers <= 1:
        return "singleton"
    if gold_papers == 2:
        return "focused"
    return "mid_range" if gold_papers <= 4 else "wide_net"
