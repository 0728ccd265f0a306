"""Completion of typed rows: papers are looked up, quotes located, bounds checked, splits assigned.

`files.py` and `hub.py` produce the drafts; `splits.py` assigns the completed problems to splits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from env.chat_tokens import split_chat_tokens, split_span
from env.problems.schema import Fact, Level, Paper, Problem, Span, Split, tier_of
from tasks.data.align import LocatedQuote, Missing, Quotes, add_alternatives, common, locate
from tasks.data.row_schema import did_you_mean
from tasks.data.settings import SplitSettings
from tasks.data.source import Candidate, Found, OnProgress, ProblemBounds, Rejected, distinct
from tasks.data.splits import deal

LEVELS: dict[str, Level] = {
    "singleton": "easy",
    "focused": "medium",
    "mid_range": "hard",
    "wide_net": "hard",
}
"""Difficulty of a tier, used where a row does not set `difficulty`."""


@dataclass(frozen=True)
class Place:
    """Location of a fact as a row gives it: a quote, or characters [start, end)."""

    field: str
    paper_id: str
    quote: str | None = None
    start: int = 0
    end: int = 0


@dataclass(frozen=True)
class ProblemDraft:
    """A row with valid types; each fact is a list of places, any of which is right."""

    row: str
    question: str
    papers: Sequence[Paper]
    facts: Sequence[Sequence[Place]]
    papers_field: str = "papers"
    problem_id: str | None = None
    collection_id: str | None = None
    split: Split | None = None
    difficulty: Level | None = None
    faults: Sequence[Rejected] = ()
    """Those that are known; the other parts of the row are still checked."""


@dataclass
class DraftOutcome:
    """Result of a draft: a candidate or faults, and the outcome of each quote."""

    row: str
    candidate: Candidate | None = None
    faults: list[Rejected] = field(default_factory=list)
    quotes: list[LocatedQuote | Missing] = field(default_factory=list)

    def reject(self, field: str, reason: str, remedy: str) -> None:
        """Add a fault of the row."""
        self.faults.append(Rejected(self.row, field, reason, remedy))


def complete_all(
    drafts: Iterable[tuple[str, ProblemDraft | list[Rejected]]],
    splits: SplitSettings,
    bounds: ProblemBounds,
    progress: OnProgress | None = None,
) -> Found:
    """Problems in their splits, and all faults in the order of the rows.

    Args:
        drafts: each row's name with its draft or its faults.
        splits: shares and similarities of the splits.
        bounds: limits of a problem.
        progress: called with the number of finished rows.
    """
    outcomes: list[DraftOutcome] = []
    for number, (row, draft) in enumerate(drafts, 1):
        if isinstance(draft, ProblemDraft):
            outcomes.append(complete(draft, bounds))
        else:
            outcomes.append(DraftOutcome(row, faults=draft))
        if progress is not None:
            progress(number)
    candidates, repeated = distinct(one.candidate for one in outcomes if one.candidate)
    problems, leaking = deal(candidates, splits)
    order = {outcome.row: place for place, outcome in enumerate(outcomes)}
    faults = [fault for outcome in outcomes for fault in outcome.faults]
    rejected = sorted([*faults, *repeated, *leaking], key=lambda fault: order[fault.row])
    quotes = Quotes.count(quote for outcome in outcomes for quote in outcome.quotes)
    return Found(problems, rejected, quotes=quotes)


def complete(draft: ProblemDraft, bounds: ProblemBounds) -> DraftOutcome:
    """Problem of a draft; each further occurrence of its gold becomes an alternative."""
    draft = _split(draft)
    outcome = DraftOutcome(draft.row, faults=list(draft.faults))
    _check_papers(draft, bounds, outcome)
    papers = {paper.paper_id: paper for paper in draft.papers}
    facts: list[Fact] = []
    for number, places in enumerate(draft.facts, start=1):
        spans: dict[tuple[str, int, int], Span] = {}
        for place in places:
            for span in _spans(draft, place, papers, bounds, outcome):
                spans[span.paper_id, span.start, span.end] = span
        if spans:
            facts.append(Fact(fact_id=f"f{number}", spans=tuple(spans.values())))
    gold = len({span.paper_id for fact in facts for span in fact.spans})
    if gold > bounds.max_gold_papers:
        outcome.reject(
            "evidence",
            f"is in {gold} papers, but one call can hand out only {bounds.max_gold_papers}",
            f"set env.limits.max_children={gold}, or ask for less",
        )
    if not outcome.faults:
        problem = add_alternatives(_problem(draft, tuple(facts), gold))
        if draft.difficulty is None:
            problem = problem.model_copy(update={"difficulty": LEVELS[problem.tier]})
        outcome.candidate = Candidate(draft.row, problem, draft.split)
    return outcome


def _split(draft: ProblemDraft) -> ProblemDraft:
    """The draft with chat tokens split in papers and quotes, and its offsets moved along."""
    texts = {paper.paper_id: paper.text for paper in draft.papers}

    def split(place: Place) -> Place:
        if place.quote is not None:
            return replace(place, quote=split_chat_tokens(place.quote))
        start, end = split_span(texts.get(place.paper_id, ""), place.start, place.end)
        return replace(place, start=start, end=end)

    papers = [
        paper.model_copy(
            update={
                name: split_chat_tokens(getattr(paper, name))
                for name in ("title", "abstract", "text")
            }
        )
        for paper in draft.papers
    ]
    return replace(
        draft, papers=papers, facts=[[split(one) for one in fact] for fact in draft.facts]
    )


def _problem(draft: ProblemDraft, facts: tuple[Fact, ...], gold_papers: int) -> Problem:
    problem_id = draft.problem_id or _content_id(draft)
    return Problem(
        problem_id=problem_id,
        collection_id=draft.collection_id or problem_id,
        split=draft.split or "train",
        difficulty=draft.difficulty or "easy",
        tier=tier_of(gold_papers),
        question=draft.question,
        papers=tuple(draft.papers),
        evidence=facts,
    )


def _content_id(draft: ProblemDraft) -> str:
    digest = hashlib.sha256(draft.question.encode())
    for paper in sorted(paper.text for paper in draft.papers):
        digest.update(b"\0" + paper.encode())
    return f"q-{digest.hexdigest()[:12]}"


def _check_papers(draft: ProblemDraft, bounds: ProblemBounds, outcome: DraftOutcome) -> None:
    name = draft.papers_field
    if len(draft.papers) > bounds.max_papers:
        outcome.reject(
            name,
            f"has {len(draft.papers)} papers, the limit is {bounds.max_papers}",
            "give fewer papers",
        )
    earlier: dict[str, int] = {}
    for number, paper in enumerate(draft.papers):
        if paper.paper_id in earlier:
            outcome.reject(
                f"{name}[{number}]" + (".paper_id" if name == "papers" else ""),
                f"{paper.paper_id!r} is already {name}[{earlier[paper.paper_id]}]",
                "give each paper a different id, and name it once",
            )
        earlier.setdefault(paper.paper_id, number)
        if len(paper.text) > bounds.max_text_chars:
            outcome.reject(
                f"{name}[{number}].text",
                f"has {len(paper.text):,} characters, the limit is {bounds.max_text_chars:,}",
                "split the paper",
            )


def _spans(
    draft: ProblemDraft,
    place: Place,
    papers: dict[str, Paper],
    bounds: ProblemBounds,
    outcome: DraftOutcome,
) -> Sequence[Span]:
    """Spans of one place; the fault of an invalid place goes to `outcome`."""
    paper = papers.get(place.paper_id)
    if paper is None:
        meant = did_you_mean(place.paper_id, papers)
        reason = f"names {place.paper_id!r}, which is not a paper of this row"
        reason += f"; did you mean {meant!r}?" if meant else ""
        remedy = f"name one of its {draft.papers_field}, or add the paper"
        outcome.reject(place.field, reason, remedy)
        return ()
    if place.quote is None:
        quote, field = _by_offsets(place, paper), place.field
    else:
        quote, field = locate(place.quote, (paper,)), f"{place.field}.quote"
        if isinstance(quote, Missing):
            quote = replace(quote, remedy=quote.remedy + _elsewhere(place.quote, paper, papers))
    quote = _long_enough(place, quote, bounds.min_span_chars)
    outcome.quotes.append(quote)
    if isinstance(quote, LocatedQuote):
        return quote.spans
    outcome.reject(field, quote.reason, quote.remedy)
    return ()


def _by_offsets(place: Place, paper: Paper) -> LocatedQuote | Missing:
    if place.end > len(paper.text):
        return Missing(
            f"end {place.end} exceeds the paper's length of {len(paper.text):,} characters",
            "count the characters of `text`, from 0",
        )
    text = paper.text[place.start : place.end]
    span = Span(paper_id=paper.paper_id, start=place.start, end=place.end, text=text)
    return common(text, (paper,)) or LocatedQuote((span,), "offsets")


def _long_enough(place: Place, quote: LocatedQuote | Missing, least: int) -> LocatedQuote | Missing:
    """`quote`, or `Missing` if the quote is shorter than the answers that rewards ignore."""
    texts = [span.text for span in quote.spans] if isinstance(quote, LocatedQuote) else []
    texts += [place.quote] if place.quote is not None else []
    shortest = min((len(text.strip()) for text in texts), default=least)
    if shortest >= least:
        return quote
    return Missing(
        f"has {shortest} characters, answers shorter than {least} are ignored",
        "quote the whole sentence, or lower rewards.min_span_chars",
    )


def _elsewhere(quote: str, paper: Paper, papers: dict[str, Paper]) -> str:
    """A hint if another paper of the row contains the quote."""
    match = locate(quote, [one for one in papers.values() if one is not paper], 100.0)
    return f"; it is in {match.spans[0].paper_id!r}" if isinstance(match, LocatedQuote) else ""
