"""One problem: a question about a collection of papers, and its gold evidence.

Gold stays on the server: of a `Problem` a client may only ever see its `ProblemCard`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from env.settings import Settings

Split = Literal["train", "validation", "test"]
Tier = Literal["singleton", "focused", "mid_range", "wide_net"]


class Paper(Settings):
    """One document; `text` is what the REPL's `context` holds, and what spans index."""

    paper_id: str = Field(min_length=1)
    title: str
    abstract: str
    text: str = Field(min_length=1)


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


def tier_of(gold_papers: int) -> Tier:
    """1 paper: singleton, 2: focused, 3-4: mid_range, 5 and more: wide_net."""
    if gold_papers <= 1:
        return "singleton"
    if gold_papers == 2:
        return "focused"
    return "mid_range" if gold_papers <= 4 else "wide_net"
