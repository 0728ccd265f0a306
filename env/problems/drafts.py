"""From a row as it was read to a problem: papers looked up, quotes located, bounds kept.

Neighbours: `files.py` and `hub.py` write drafts; `splits.py` deals out what comes of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from env.problems.align import Located, Missing, add_alternatives, common, locate
from env.problems.row_schema import did_you_mean
from env.problems.schema import Fact, Level, Paper, Problem, Span, Split, tier_of
from env.problems.source import Bounds, Candidate, Rejected

LEVELS: dict[str, Level] = {
    "singleton": "easy",
    "focused": "medium",
    "mid_range": "hard",
    "wide_net": "hard",
}
"""The difficulty of a tier, where a row says none."""


@dataclass(frozen=True)
class Place:
    """Where a row says that a fact stands: a quote, or characters [start, end)."""

    field: str
    paper_id: str
    quote: str | None = None
    start: int = 0
    end: int = 0


@dataclass(frozen=True)
class Draft:
    """A row whose types are right; each fact is a list of places, any of them is right."""

    row: str
    question: str
    papers: Sequence[Paper]
    facts: Sequence[Sequence[Place]]
    papers_field: str = "papers"
    problem_id: str | None = None
    group_id: str | None = None
    split: Split | None = None
    difficulty: Level | None = None


@dataclass
class Outcome:
    """What became of a draft: a candidate, or faults; and how its quotes were found."""

    row: str
    candidate: Candidate | None = None
    faults: list[Rejected] = field(default_factory=list)
    quotes: list[Located | Missing] = field(default_factory=list)


def complete(draft: Draft, bounds: Bounds, min_similarity: float) -> Outcome:
    """The problem of a draft, with every further occurrence of its gold as an alternative."""
    outcome = Outcome(draft.row, faults=_paper_faults(draft, bounds))
    papers = {paper.paper_id: paper for paper in draft.papers}
    facts: list[Fact] = []
    for number, places in enumerate(draft.facts, start=1):
        spans: dict[tuple[str, int, int], Span] = {}
        for place in places:
            for span in _spans(draft, place, papers, bounds, min_similarity, outcome):
                spans[span.paper_id, span.start, span.end] = span
        if spans:
            facts.append(Fact(fact_id=f"f{number}", spans=tuple(spans.values())))
    gold = {span.paper_id for fact in facts for span in fact.spans}
    if len(gold) > bounds.max_gold_papers:
        outcome.faults.append(
            Rejected(
                draft.row,
                "evidence",
                f"stands in {len(gold)} papers, one call hands out {bounds.max_gold_papers}",
                f"set env.limits.max_children={len(gold)}, or ask for less",
            )
        )
    if not outcome.faults:
        problem = add_alternatives(_problem(draft, tuple(facts)))
        outcome.candidate = Candidate(draft.row, problem, draft.split)
    return outcome


def _problem(draft: Draft, facts: tuple[Fact, ...]) -> Problem:
    tier = tier_of(len({span.paper_id for fact in facts for span in fact.spans}))
    problem_id = draft.problem_id or _content_id(draft)
    return Problem(
        problem_id=problem_id,
        group_id=draft.group_id or problem_id,
        split=draft.split or "train",
        difficulty=draft.difficulty or LEVELS[tier],
        tier=tier,
        question=draft.question,
        papers=tuple(draft.papers),
        evidence=facts,
    )


def _content_id(draft: Draft) -> str:
    digest = hashlib.sha256(draft.question.encode())
    for paper in sorted(paper.text for paper in draft.papers):
        digest.update(b"\0" + paper.encode())
    return f"q-{digest.hexdigest()[:12]}"


def _paper_faults(draft: Draft, bounds: Bounds) -> list[Rejected]:
    found = []
    name = draft.papers_field
    if len(draft.papers) > bounds.max_papers:
        found.append(
            Rejected(
                draft.row,
                name,
                f"has {len(draft.papers)} papers, the limit is {bounds.max_papers}",
                "give fewer papers, or raise validate.max_papers",
            )
        )
    before: dict[str, int] = {}
    for number, paper in enumerate(draft.papers):
        if paper.paper_id in before:
            found.append(
                Rejected(
                    draft.row,
                    f"{name}[{number}]" + (".paper_id" if name == "papers" else ""),
                    f"{paper.paper_id!r} is {name}[{before[paper.paper_id]}] already",
                    "give each paper an id of its own, once",
                )
            )
        before.setdefault(paper.paper_id, number)
        if len(paper.text) > bounds.max_text_chars:
            found.append(
                Rejected(
                    draft.row,
                    f"{name}[{number}].text",
                    f"has {len(paper.text):,} characters, the limit is {bounds.max_text_chars:,}",
                    "split the paper, or raise validate.max_text_chars",
                )
            )
    return found


def _spans(
    draft: Draft,
    place: Place,
    papers: dict[str, Paper],
    bounds: Bounds,
    min_similarity: float,
    outcome: Outcome,
) -> Sequence[Span]:
    """The spans of one place; a place that is none leaves its fault in `outcome`."""
    paper = papers.get(place.paper_id)
    if paper is None:
        meant = did_you_mean(place.paper_id, papers)
        reason = f"names {place.paper_id!r}, which is no paper of this row"
        reason += f"; did you mean {meant!r}?" if meant else ""
        remedy = f"name one of its {draft.papers_field}, or add the paper"
        outcome.faults.append(Rejected(draft.row, place.field, reason, remedy))
        return ()
    if place.quote is None:
        found, field = _by_offsets(place, paper), place.field
    else:
        found, field = locate(place.quote, (paper,), min_similarity), f"{place.field}.quote"
        if isinstance(found, Missing):
            found = replace(found, remedy=found.remedy + _elsewhere(place, papers))
    found = _long_enough(place, found, bounds.min_span_chars)
    outcome.quotes.append(found)
    if isinstance(found, Located):
        return found.spans
    outcome.faults.append(Rejected(draft.row, field, found.reason, found.remedy))
    return ()


def _by_offsets(place: Place, paper: Paper) -> Located | Missing:
    if place.end > len(paper.text):
        return Missing(
            f"end {place.end} is behind the paper's last character, it has {len(paper.text):,}",
            "count the characters of `text`, from 0",
        )
    text = paper.text[place.start : place.end]
    span = Span(paper_id=paper.paper_id, start=place.start, end=place.end, text=text)
    return common(text, (paper,)) or Located((span,), "offsets")


def _long_enough(place: Place, found: Located | Missing, least: int) -> Located | Missing:
    """A quote as short as answers that are ignored is none, wherever it stands."""
    texts = [span.text for span in found.spans] if isinstance(found, Located) else []
    texts += [place.quote] if place.quote is not None else []
    shortest = min((len(text.strip()) for text in texts), default=least)
    if shortest >= least:
        return found
    return Missing(
        f"has {shortest} characters, answers shorter than {least} are ignored",
        "quote the whole sentence, or lower rewards.min_span_chars",
    )


def _elsewhere(place: Place, papers: dict[str, Paper]) -> str:
    """A hint when another paper of the row holds the quote."""
    others = [paper for paper in papers.values() if paper.paper_id != place.paper_id]
    found = locate(place.quote or "", others, 100.0)
    return f"; it stands in {found.spans[0].paper_id!r}" if isinstance(found, Located) else ""
