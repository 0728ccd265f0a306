"""Location of quotes in papers, and of further occurrences of gold texts.

A quote is searched for exactly, then in the texts that `normalise.py` makes, then by fuzzy
alignment. A fuzzy match consists of whole words and contains all numbers of the quote; of two
places that are about as similar, neither is accepted. Spans are always slices of the paper.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from rapidfuzz import fuzz

from env.problems.schema import Fact, Paper, Problem, Span, tier_of
from rewards.spans import occurrences
from tasks.data.normalise import Normalised, normalise

_REPORTED = 12.0
"""Messages name the best similarity of a rejected quote down to this much below the minimum."""
_MARGIN = 2.0
"""Two different places are ambiguous if their similarities differ by less."""
MIN_SIMILARITY = 92.0
"""Least ratio of a quote that occurs nowhere letter by letter: a few letters differ."""
_MOST_PLACES = 50
"""Most places of a text that can be evidence."""
_SHOWN = 60
"""Characters of the most similar text in a message."""
_LITERALLY = "quote the document itself, letter by letter"
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")

How = Literal["exact", "normalised", "fuzzy", "offsets"]


@dataclass(frozen=True)
class LocatedQuote:
    """A located quote; several spans have the same text."""

    spans: tuple[Span, ...]
    how: How
    similarity: float = 100.0


@dataclass(frozen=True)
class Missing:
    """A quote that occurs nowhere, or at several different places."""

    reason: str
    remedy: str
    similarity: float | None = None
    """Similarity of its most similar place, 0 to 100; None if nothing is similar."""


@dataclass(frozen=True)
class Quotes:
    """Numbers of quotes of a data set by how they were found."""

    exact: int = 0
    normalised: int = 0
    fuzzy: int = 0
    offsets: int = 0
    rejected: int = 0
    lowest_similarity: float | None = None
    """Lowest similarity of an accepted quote, 0 to 100; None without one."""

    @classmethod
    def count(cls, outcomes: Iterable[LocatedQuote | Missing]) -> Quotes:
        """Counts of all quotes, those of rejected rows included."""
        quotes = list(outcomes)
        located = [one for one in quotes if isinstance(one, LocatedQuote)]
        return cls(
            **Counter[str](one.how for one in located),
            rejected=len(quotes) - len(located),
            lowest_similarity=min((round(one.similarity, 2) for one in located), default=None),
        )


def locate(
    quote: str, papers: Sequence[Paper], min_similarity: float = MIN_SIMILARITY
) -> LocatedQuote | Missing:
    """Places of a quote in the papers.

    Args:
        quote: text as a person or a model wrote it.
        papers: papers to search.
        min_similarity: least rapidfuzz ratio of the normalised texts, 0 to 100.
    """
    wanted = normalise(quote).text.strip()
    if not wanted:
        return Missing("the quote is empty", "quote the sentence that contains the fact")
    too_common = common(quote.strip(), papers)
    if too_common:
        return too_common
    exact = _places(papers, quote.strip())
    loose = list(_normalised_places(wanted, papers))
    places = {(span.paper_id, span.start, span.end): span for span in exact}
    for span in loose:
        beside = (one for one in exact if one.paper_id == span.paper_id)
        if not any(one.start < span.end and span.start < one.end for one in beside):
            places.setdefault((span.paper_id, span.start, span.end), span)
    if places:
        return LocatedQuote(tuple(places.values()), "exact" if exact else "normalised")
    return _fuzzy(wanted, papers, min_similarity)


def common(text: str, papers: Sequence[Paper]) -> Missing | None:
    """Fault of a text with too many occurrences to point anywhere; None for any other text."""
    places = sum(paper.text.count(text) for paper in papers)
    if places <= _MOST_PLACES:
        return None
    return Missing(f"occurs at {places} places", "quote more of the sentence")


def _places(papers: Sequence[Paper], wanted: str) -> list[Span]:
    """All exact occurrences of a text, overlapping ones included."""
    return [_span(paper, *place) for paper in papers for place in occurrences(paper.text, wanted)]


def _span(paper: Paper, start: int, end: int) -> Span:
    return Span(paper_id=paper.paper_id, start=start, end=end, text=paper.text[start:end])


def _normalised_places(wanted: str, papers: Sequence[Paper]) -> Iterator[Span]:
    for paper in papers:
        text = normalise(paper.text)
        start = text.text.find(wanted)
        while start >= 0:
            yield _span(paper, *text.original(start, start + len(wanted)))
            start = text.text.find(wanted, start + len(wanted))


@dataclass(frozen=True)
class _Place:
    """A slice of a paper's normalised text and its similarity to the quote."""

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


def _fuzzy(wanted: str, papers: Sequence[Paper], min_similarity: float) -> LocatedQuote | Missing:
    least = max(0.0, min_similarity - _REPORTED)
    places: list[_Place] = []
    for paper in papers:
        for place in _two_best(wanted, paper, normalise(paper.text), least):
            least = max(least, place.similarity - 2 * _MARGIN)
            places.append(place)
    if not places:
        reason = f"the quote is not found, not even with a similarity of {least:g}"
        return Missing(reason, _LITERALLY)
    # Two results may differ only in a number: no similarity makes one of them the other.
    numbers = Counter(_NUMBER.findall(wanted))
    same = [place for place in places if numbers <= Counter(_NUMBER.findall(place.text))]
    best = max(same or places, key=lambda place: place.similarity)
    if best.similarity < min_similarity or not same:
        return Missing(
            f"the quote is not found; the best match is {best} with a similarity of "
            f"{best.similarity:.1f}"
            + (f", needed is {min_similarity:g}" if same else ", but its numbers differ"),
            _LITERALLY,
            best.similarity,
        )
    rivals = [place for place in same if place.similarity > best.similarity - _MARGIN]
    different = next((place for place in rivals if place.text != best.text), None)
    if different is not None:
        return Missing(
            f"the quote is ambiguous: {best} and {different} are about as similar",
            "quote one of them letter by letter",
            best.similarity,
        )
    return LocatedQuote(tuple(place.span() for place in rivals), "fuzzy", best.similarity)


def _two_best(wanted: str, paper: Paper, text: Normalised, least: float) -> Iterator[_Place]:
    """The most similar slice of whole words, and the most similar ones before and after it."""
    best = _nearest(wanted, paper, text.text, 0, len(text.text), least)
    if best is None:
        return
    yield best
    for start, end in ((0, best.start), (best.end, len(text.text))):
        if place := _nearest(wanted, paper, text.text, start, end, best.similarity - 2 * _MARGIN):
            yield place


def _nearest(
    wanted: str, paper: Paper, text: str, start: int, end: int, least: float
) -> _Place | None:
    """The slice of whole words within [start, end) that is most similar to the quote."""
    # rapidfuzz searches the longer text for the shorter one: the quote must be the shorter.
    if end - start < len(wanted) / 2:
        return None
    # The window is as long as the quote. Inserted text pushes as much out of the window at its
    # end, so that the loss of similarity doubles.
    cutoff = max(0.0, 2 * least - 100)
    alignment = fuzz.partial_ratio_alignment(wanted, text[start:end], score_cutoff=cutoff)
    if alignment is None:
        return None
    around = min(128, max(16, len(wanted) // 8))
    first = _edges(text, start + alignment.dest_start, around, start, end, r"(?<!\w)(?=\S)")
    last = _edges(text, start + alignment.dest_end, around, start, end, r"(?<=\S)(?!\w)")
    ranked = (
        _Place(fuzz.ratio(wanted, text[i:j]), paper, i, j) for i, j in product(first, last) if i < j
    )
    place = max(ranked, key=lambda place: (place.similarity, place.start - place.end), default=None)
    return place if place is not None and place.similarity >= least else None


def _edges(text: str, near: int, around: int, start: int, end: int, edge: str) -> list[int]:
    """Positions near `near` where words start or end."""
    low, high = max(start, near - around), min(end, near + around)
    return [match.start() for match in re.compile(edge).finditer(text, low, high + 1)]


def add_alternatives(problem: Problem) -> Problem:
    """The problem with each further exact occurrence of a gold text as an alternative.

    An answer in bare strings points at all of them. Facts with the same alternatives are merged,
    and the tier counts the papers of all of them.
    """
    facts: dict[frozenset[tuple[str, int, int]], Fact] = {}
    for fact in problem.evidence:
        spans = {(span.paper_id, span.start, span.end): span for span in fact.spans}
        for wanted in {span.text: None for span in fact.spans}:
            for span in _places(problem.papers, wanted):
                spans.setdefault((span.paper_id, span.start, span.end), span)
        completed = Fact(fact_id=fact.fact_id, spans=tuple(spans.values()))
        facts.setdefault(frozenset(spans), completed)
    evidence = tuple(facts.values())
    if evidence == problem.evidence:
        return problem
    tier = tier_of(len({span.paper_id for fact in evidence for span in fact.spans}))
    return problem.model_copy(update={"evidence": evidence, "tier": tier})


def fault(problem: Problem, min_span_chars: int) -> str | None:
    """Reason why no answer can earn the full reward of a problem; None if one can.

    Args:
        problem: any problem.
        min_span_chars: least characters of a span; answers' shorter spans are ignored.
    """
    texts = problem.texts
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
