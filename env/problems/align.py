"""Gold against text: where a quote stands, and every further place of a gold text.

A quote is found exactly; else after `normalise.py` has made equal what converters garble; else
by fuzzy alignment, at whole words, with all the quote's numbers, and never at one of two places
that are about as good. What is stored is always the paper's own slice. Neighbours: a source makes
problems, `tasks/prepare.py` completes or rejects them with what is here.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from rapidfuzz import fuzz

from env.problems.normalise import Normalised, normalise
from env.problems.schema import Fact, Paper, Problem, Span

_REPORTED = 12.0
"""A rejected quote's best similarity is told down to this much below the accepted one."""
_MARGIN = 2.0
"""Two different places whose similarities are closer than this are ambiguous."""
_MOST_PLACES = 50
"""A text that stands at more places is no evidence for anything."""
_SHOWN = 60
"""Characters of the nearest text in a message."""
_LITERALLY = "quote the paper itself, letter by letter"
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")

How = Literal["exact", "normalised", "fuzzy", "offsets"]


@dataclass(frozen=True)
class Located:
    """Where a quote stands; several spans hold the same text."""

    spans: tuple[Span, ...]
    how: How
    similarity: float = 100.0


@dataclass(frozen=True)
class Missing:
    """A quote that stands nowhere, or at several different places."""

    reason: str
    remedy: str
    similarity: float | None = None
    """Of its nearest place; None when nothing is near."""


@dataclass(frozen=True)
class Quotes:
    """How the quotes of a data set were found."""

    exact: int = 0
    normalised: int = 0
    fuzzy: int = 0
    offsets: int = 0
    rejected: int = 0
    lowest_similarity: float | None = None
    """Of the accepted ones."""

    @classmethod
    def count(cls, outcomes: Iterable[Located | Missing]) -> Quotes:
        """Of all quotes, those of rejected rows included."""
        found = list(outcomes)
        located = [one for one in found if isinstance(one, Located)]
        return cls(
            **Counter[str](one.how for one in located),
            rejected=len(found) - len(located),
            lowest_similarity=min((round(one.similarity, 2) for one in located), default=None),
        )

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return dict(vars(self))


def locate(quote: str, papers: Sequence[Paper], min_similarity: float) -> Located | Missing:
    """Where a quote stands in the papers.

    Args:
        quote: as a person or a model wrote it.
        papers: those that may hold it.
        min_similarity: rapidfuzz's ratio of the normalised texts, 0 to 100.
    """
    wanted = normalise(quote).text.strip()
    if not wanted:
        return Missing("the quote is empty", "quote the sentence that holds the fact")
    too_common = common(quote.strip(), papers)
    if too_common:
        return too_common
    exact = occurrences(papers, quote.strip())
    loose = list(_normalised_places(wanted, papers))
    places = {(span.paper_id, span.start, span.end): span for span in exact}
    for span in loose:
        if not any(_overlap(span, other) for other in exact):
            places.setdefault((span.paper_id, span.start, span.end), span)
    if places:
        return Located(tuple(places.values()), "exact" if exact else "normalised")
    return _fuzzy(wanted, papers, min_similarity)


def common(text: str, papers: Sequence[Paper]) -> Missing | None:
    """What stands nearly everywhere points nowhere; None for any other text."""
    places = sum(paper.text.count(text) for paper in papers)
    if places <= _MOST_PLACES:
        return None
    return Missing(f"stands at {places} places", "quote more of the sentence that is meant")


def occurrences(papers: Sequence[Paper], wanted: str) -> list[Span]:
    """Every place where a text stands letter by letter, overlapping ones included."""
    found = []
    for paper in papers:
        start = paper.text.find(wanted)
        while start >= 0:
            found.append(_span(paper, start, start + len(wanted)))
            start = paper.text.find(wanted, start + 1)
    return found


def _span(paper: Paper, start: int, end: int) -> Span:
    return Span(paper_id=paper.paper_id, start=start, end=end, text=paper.text[start:end])


def _overlap(one: Span, two: Span) -> bool:
    return one.paper_id == two.paper_id and one.start < two.end and two.start < one.end


def _normalised_places(wanted: str, papers: Sequence[Paper]) -> Iterator[Span]:
    for paper in papers:
        text = normalise(paper.text)
        start = text.text.find(wanted)
        while start >= 0:
            yield _span(paper, *text.original(start, start + len(wanted)))
            start = text.text.find(wanted, start + len(wanted))


@dataclass(frozen=True)
class _Place:
    """A stretch of a paper's normalised text, and how near it comes to the quote."""

    similarity: float
    paper: Paper
    start: int
    end: int

    @property
    def text(self) -> str:
        return normalise(self.paper.text).text[self.start : self.end]

    def span(self) -> Span:
        return _span(self.paper, *normalise(self.paper.text).original(self.start, self.end))

    def __str__(self) -> str:
        span = self.span()
        shown = textwrap.shorten(span.text, _SHOWN, placeholder="...")
        return f"{span.paper_id}[{span.start}:{span.end}] ({shown!r})"


def _fuzzy(wanted: str, papers: Sequence[Paper], min_similarity: float) -> Located | Missing:
    least = max(0.0, min_similarity - _REPORTED)
    places: list[_Place] = []
    for paper in papers:
        for place in _two_best(wanted, paper, normalise(paper.text), least):
            least = max(least, place.similarity - 2 * _MARGIN)
            places.append(place)
    if not places:
        return Missing(
            f"the quote stands nowhere, not even with a similarity of {least:g}", _LITERALLY
        )
    # Two results differ in nothing but a number: no similarity makes one of them the other.
    numbers = Counter(_NUMBER.findall(wanted))
    same = [place for place in places if numbers <= Counter(_NUMBER.findall(place.text))]
    best = max(same or places, key=lambda place: place.similarity)
    if best.similarity < min_similarity or not same:
        return Missing(
            f"the quote stands nowhere; nearest is {best} with a similarity of "
            f"{best.similarity:.1f}"
            + (f", wanted are {min_similarity:g}" if same else ", but its numbers are others"),
            _LITERALLY + (", or lower prepare.align.min_similarity" if same else ""),
            best.similarity,
        )
    rivals = [place for place in same if place.similarity > best.similarity - _MARGIN]
    different = next((place for place in rivals if place.text != best.text), None)
    if different is not None:
        return Missing(
            f"the quote is ambiguous: {best} and {different} are about as near",
            "quote the one that is meant letter by letter",
            best.similarity,
        )
    return Located(tuple(place.span() for place in rivals), "fuzzy", best.similarity)


def _two_best(wanted: str, paper: Paper, text: Normalised, least: float) -> Iterator[_Place]:
    """The nearest stretch of whole words, and the nearest one beside it."""
    best = _nearest(wanted, paper, text.text, 0, len(text.text), least)
    if best is None:
        return
    yield best
    beside = [
        _nearest(wanted, paper, text.text, start, end, best.similarity - 2 * _MARGIN)
        for start, end in ((0, best.start), (best.end, len(text.text)))
    ]
    yield from (place for place in beside if place is not None)


def _nearest(
    wanted: str, paper: Paper, text: str, start: int, end: int, least: float
) -> _Place | None:
    """The stretch of whole words within [start, end) that comes nearest to the quote."""
    # The shorter of both is looked for in the other: a quote must not be the longer one.
    if end - start < len(wanted) / 2:
        return None
    # Its window is as long as the quote: of a stretch with something inserted it misses as much
    # again at an end, and finds it only half as near.
    cutoff = max(0.0, 2 * least - 100)
    found = fuzz.partial_ratio_alignment(wanted, text[start:end], score_cutoff=cutoff)
    if found is None:
        return None
    around = max(16, len(wanted) // 8)
    first = _edges(text, start + found.dest_start, around, start, end, r"(?<!\w)(?=\S)")
    last = _edges(text, start + found.dest_end, around, start, end, r"(?<=\S)(?!\w)")
    ranked = (
        _Place(fuzz.ratio(wanted, text[i:j]), paper, i, j) for i, j in product(first, last) if i < j
    )
    place = max(ranked, key=lambda place: (place.similarity, place.start - place.end), default=None)
    return place if place is not None and place.similarity >= least else None


def _edges(text: str, near: int, around: int, start: int, end: int, edge: str) -> list[int]:
    """Where words begin or end, not far from a place."""
    low, high = max(start, near - around), min(end, near + around)
    return [match.start() for match in re.compile(edge).finditer(text, low, high + 1)]


def add_alternatives(problem: Problem) -> Problem:
    """The problem with each exact further occurrence of a gold text as an alternative.

    An answer in bare strings points at all of them. Facts that end up with the same
    alternatives are one fact.
    """
    facts: dict[frozenset[tuple[str, int, int]], Fact] = {}
    for fact in problem.evidence:
        spans = {(span.paper_id, span.start, span.end): span for span in fact.spans}
        for wanted in {span.text: None for span in fact.spans}:
            for span in occurrences(problem.papers, wanted):
                spans.setdefault((span.paper_id, span.start, span.end), span)
        completed = Fact(fact_id=fact.fact_id, spans=tuple(spans.values()))
        facts.setdefault(frozenset(spans), completed)
    evidence = tuple(facts.values())
    if evidence == problem.evidence:
        return problem
    return problem.model_copy(update={"evidence": evidence})


def fault(problem: Problem, min_span_chars: int) -> str | None:
    """Why nobody could earn the reward of this problem; None when all is well.

    Args:
        problem: any problem.
        min_span_chars: shorter spans are ignored in answers, so they cannot be gold.
    """
    texts = {paper.paper_id: paper.text for paper in problem.papers}
    if len(texts) < len(problem.papers):
        return "two papers have the same paper_id"
    for fact in problem.evidence:
        for span in fact.spans:
            where = f"{fact.fact_id}: {span.paper_id}[{span.start}:{span.end}]"
            if texts.get(span.paper_id, "")[span.start : span.end] != span.text:
                return f"{where} is not the gold text"
            if len(span.text) < min_span_chars:
                return f"{where} is shorter than {min_span_chars} characters"
    return None
