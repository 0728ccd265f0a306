"""Schema of a problem: a question about a collection of papers, and its gold evidence.

Gold stays on the server: a client only sees the `ProblemCard` of a `Problem`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from env.settings import SPLITS as SPLITS
from env.settings import Settings
from env.settings import Split as Split

Tier = Literal["singleton", "focused", "mid_range", "wide_net"]
Measure = Literal["papers", "sentences"]
Level = Literal["easy", "medium", "hard"]
"""Difficulties of the source `files`."""


class Paper(Settings):
    """One document; `text` is in the REPL's `context`, and spans index it."""

    paper_id: str = Field(min_length=1)
    title: str
    abstract: str
    text: str = Field(min_length=1)


class Span(Settings):
    """Characters [start, end) of one paper's text; `text` is that slice."""

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
    collection_id: str
    """Papers shared by several questions; splits are made by collection."""
    split: Split
    difficulty: str
    tier: Tier
    question: str = Field(min_length=1)
    papers: tuple[Paper, ...] = Field(min_length=1)
    evidence: tuple[Fact, ...] = Field(min_length=1)
    candidates: tuple[Span, ...] = ()
    """Sentences among which only a reader can choose; empty where the source knows none."""

    @property
    def measure(self) -> Measure:
        """How the reward measures work: by sentences where the source declares candidates."""
        return "sentences" if self.candidates else "papers"

    @property
    def texts(self) -> dict[str, str]:
        """Text of each paper by its id."""
        return {paper.paper_id: paper.text for paper in self.papers}

    @property
    def places(self) -> list[list[tuple[str, int, int]]]:
        """Alternatives (paper_id, start, end) of each fact."""
        return [[(s.paper_id, s.start, s.end) for s in fact.spans] for fact in self.evidence]

    @property
    def gold_papers(self) -> set[str]:
        """Ids of the papers with evidence."""
        return {span.paper_id for fact in self.evidence for span in fact.spans}


CANDIDATES = "candidates"
"""A column of JSON text, only in rows whose problem has candidates."""
COLUMNS = tuple(name for name in Problem.model_fields if name != CANDIDATES)
"""Columns of a stored row; the last two are JSON text, the others plain strings."""
_JSON = ("papers", "evidence", CANDIDATES)


def to_row(problem: Problem) -> dict[str, str]:
    """Stored row of a problem: one string for each of `COLUMNS`, and one for its candidates."""
    row = problem.model_dump(mode="json", exclude_defaults=True)
    for name in _JSON:
        if name in row:
            row[name] = json.dumps(row[name], ensure_ascii=False)
    return {name: row[name] for name in (*COLUMNS, CANDIDATES) if name in row}


def from_row(row: Mapping[str, Any]) -> Problem:
    """Problem of a stored row.

    Raises:
        ValueError: a column is missing or invalid (pydantic's ValidationError and a
            JSONDecodeError are ValueErrors).
    """
    missing = [name for name in COLUMNS if not isinstance(row.get(name), str)]
    if missing:
        raise ValueError(f"no text in {missing}")
    data = {n: row[n] for n in (*COLUMNS, CANDIDATES) if isinstance(row.get(n), str)}
    for name in _JSON:
        if name in data:
            data[name] = json.loads(data[name])
    return Problem.model_validate(data)


def tier_of(gold_papers: int) -> Tier:
    """1 paper: singleton, 2: focused, 3-4: mid_range, 5 and more: wide_net."""
    if gold_papers <= 2:
        return "focused" if gold_papers == 2 else "singleton"
    return "mid_range" if gold_papers <= 4 else "wide_net"
