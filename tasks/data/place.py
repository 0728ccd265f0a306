"""Drafts become candidates: the quotes are located, and the limits of a problem checked.

A quote is searched for exactly, then in the texts that `texts.normalise` makes. Spans are always
slices of the paper, and each further occurrence of a gold text is an alternative of its fact.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from env.chat_tokens import split_chat_tokens, split_span
from env.problems.schema import Fact, Level, Paper, Problem, Span, tier_of
from rewards.spans import occurrences
from tasks.data.rows import (
    Candidate,
    Draft,
    Place,
    ProblemBounds,
    Quotes,
    Rejected,
    RowFault,
    did_you_mean,
)
from tasks.data.texts import normalise

LEVELS: dict[str, Level] = {"singleton": "easy", "focused": "medium"}
"""Difficulty of a tier, used where a row does not set `difficulty`; the others are hard."""
_MOST_PLACES = 50
"""Most places of a text that can be evidence."""


class Located(NamedTuple):
    """Where a quote is in its paper; several spans have the same text."""

    how: str
    """A field of `Quotes`."""
    spans: list[Span]


def place(draft: Draft, bounds: ProblemBounds, quotes: Quotes) -> Candidate | list[Rejected]:
    """Problem of a draft, or its faults; the quotes are added to `quotes`."""
    draft = _split(draft)
    faults = [*draft.faults, *_faults_of_papers(draft, bounds)]
    papers = {paper.paper_id: paper for paper in draft.papers}
    located: list[list[Span]] = []
    for fact in draft.facts:
        spans: list[Span] = []
        for one in fact:
            if one.paper_id in papers:
                try:
                    spans += _locate(one, papers, bounds.min_span_chars, quotes)
                except RowFault as error:
                    quoted = one.field if one.quote is None else f"{one.field}.quote"
                    faults.append(error.at(draft.row, quoted))
            else:
                meant = did_you_mean(one.paper_id, papers)
                reason = f"names {one.paper_id!r}, which is not a paper of this row"
                reason += f"; did you mean {meant!r}?" if meant else ""
                remedy = f"name one of its {draft.papers_field}, or add the paper"
                faults.append(Rejected(draft.row, one.field, reason, remedy))
        located.append(spans)
    gold = len({span.paper_id for spans in located for span in spans})
    if gold > bounds.max_gold_papers:
        reason = f"is in {gold} papers, but one call can hand out only {bounds.max_gold_papers}"
        remedy = f"set env.limits.max_children={gold}, or ask for less"
        faults.append(Rejected(draft.row, "evidence", reason, remedy))
    return faults or Candidate(draft.row, _problem(draft, located), draft.split)


def _split(draft: Draft) -> Draft:
    """The draft with chat tokens split in papers and quotes, and its offsets moved along."""
    texts = {paper.paper_id: paper.text for paper in draft.papers}

    def split(place: Place) -> Place:
        if place.quote is not None:
            return replace(place, quote=split_chat_tokens(place.quote))
        start, end = split_span(texts.get(place.paper_id, ""), place.start, place.end)
        return replace(place, start=start, end=end)

    names = ("title", "abstract", "text")
    papers = [
        paper.model_copy(update={name: split_chat_tokens(getattr(paper, name)) for name in names})
        for paper in draft.papers
    ]
    facts = [[split(one) for one in fact] for fact in draft.facts]
    return replace(draft, papers=papers, facts=facts)


def _problem(draft: Draft, located: list[list[Span]]) -> Problem:
    """The problem of a draft without faults.

    An answer in bare strings points at each occurrence of a gold text, so all of them are
    alternatives. Facts with the same alternatives are merged, and the tier counts the papers of
    all of them.
    """
    facts: dict[frozenset[tuple[str, int, int]], Fact] = {}
    for number, spans in enumerate(located, 1):
        same = [
            _span(paper, start, end)
            for text in dict.fromkeys(span.text for span in spans)
            for paper in draft.papers
            for start, end in occurrences(paper.text, text)
        ]
        places = {(span.paper_id, span.start, span.end): span for span in [*spans, *same]}
        fact = Fact(fact_id=f"f{number}", spans=tuple(places.values()))
        facts.setdefault(frozenset(places), fact)
    tier = tier_of(len({paper_id for places in facts for paper_id, _, _ in places}))
    texts = b"".join(b"\0" + text.encode() for text in sorted(one.text for one in draft.papers))
    content = hashlib.sha256(draft.question.encode() + texts).hexdigest()
    problem_id = draft.problem_id or f"q-{content[:12]}"
    return Problem(
        problem_id=problem_id,
        collection_id=draft.collection_id or problem_id,
        split=draft.split or "train",
        difficulty=draft.difficulty or LEVELS.get(tier, "hard"),
        tier=tier,
        question=draft.question,
        papers=tuple(draft.papers),
        evidence=tuple(facts.values()),
    )


def _faults_of_papers(draft: Draft, bounds: ProblemBounds) -> Iterator[Rejected]:
    name, row = draft.papers_field, draft.row
    if len(draft.papers) > bounds.max_papers:
        reason = f"has {len(draft.papers)} papers, the limit is {bounds.max_papers}"
        yield Rejected(row, name, reason, "give fewer papers")
    earlier: dict[str, int] = {}
    for number, paper in enumerate(draft.papers):
        if earlier.setdefault(paper.paper_id, number) != number:
            where = f"{name}[{number}]" + (".paper_id" if name == "papers" else "")
            reason = f"{paper.paper_id!r} is already {name}[{earlier[paper.paper_id]}]"
            yield Rejected(row, where, reason, "give each paper a different id, and name it once")
        if (chars := len(paper.text)) > bounds.max_text_chars:
            reason = f"has {chars:,} characters, the limit is {bounds.max_text_chars:,}"
            yield Rejected(row, f"{name}[{number}].text", reason, "split the paper")


def _locate(place: Place, papers: Mapping[str, Paper], least: int, quotes: Quotes) -> list[Span]:
    """Spans of a place, which is counted in `quotes`.

    Raises:
        RowFault: its quote or offsets aren't usable.
    """
    paper = papers[place.paper_id]
    try:
        quote = place.quote
        found = _by_offsets(place, paper) if quote is None else locate(quote, paper, papers)
        texts = [quote or found.spans[0].text, *(span.text for span in found.spans)]
        shortest = min(len(text.strip()) for text in texts)
        if shortest < least:
            raise RowFault(
                f"has {shortest} characters, answers shorter than {least} are ignored",
                "quote the whole sentence, or lower rewards.min_span_chars",
            )
    except RowFault:
        quotes.rejected += 1
        raise
    setattr(quotes, found.how, getattr(quotes, found.how) + 1)
    return found.spans


def _by_offsets(place: Place, paper: Paper) -> Located:
    if place.end > len(paper.text):
        raise RowFault(
            f"end {place.end} exceeds the paper's length of {len(paper.text):,} characters",
            "count the characters of `text`, from 0",
        )
    span = _span(paper, place.start, place.end)
    _check_rare(span.text, paper)
    return Located("offsets", [span])


def _span(paper: Paper, start: int, end: int) -> Span:
    return Span(paper_id=paper.paper_id, start=start, end=end, text=paper.text[start:end])


def _check_rare(text: str, paper: Paper) -> None:
    """Refuse a text with too many occurrences to point anywhere."""
    places = paper.text.count(text)
    if places > _MOST_PLACES:
        raise RowFault(f"occurs at {places} places", "quote more of the sentence")


def locate(quote: str, paper: Paper, papers: Mapping[str, Paper]) -> Located:
    """Places of a quote, as a person or a model wrote it, in a paper.

    Args:
        quote: text with a letter or digit at least.
        paper: where it's searched for.
        papers: those of the row; if another one contains the quote, the message names it.

    Raises:
        RowFault: it occurs nowhere or at too many places.
    """
    if not normalise(quote).text.strip():
        raise RowFault("the quote is empty", "quote the sentence that contains the fact")
    _check_rare(quote.strip(), paper)
    if found := _literal(quote, paper):
        return found
    others = (name for name, one in papers.items() if _literal(quote, one))
    hint = next((f"; it is in {name!r}" for name in others), "")
    raise RowFault("the quote is not found", f"quote the document itself, letter by letter{hint}")


def _literal(quote: str, paper: Paper) -> Located | None:
    """All exact and normalised occurrences of a quote."""
    exact = [_span(paper, *place) for place in occurrences(paper.text, quote.strip())]
    text, wanted = normalise(paper.text), re.escape(normalise(quote).text.strip())
    loose = [_span(paper, *text.original(*m.span())) for m in re.finditer(wanted, text.text)]
    spans = exact + [
        span
        for span in loose
        if not any(one.start < span.end and span.start < one.end for one in exact)
    ]
    return Located("exact" if exact else "normalised", spans) if spans else None
