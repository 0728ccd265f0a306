"""From an answer to characters: where its items stand in the papers, and how that agrees.

An answer is one item or a list of items, nested at will: a bare string (it counts at every
place where it occurs), `{"paper_id", "text"}` or `{"paper_id", "start", "end"}`. What stands
nowhere verbatim, what is too short and what has another shape is ignored; nothing here raises on
an answer. Intervals are half-open and count Unicode code points.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from typing import Any

from rewards.settings import RewardSettings

_PLACES_PER_ITEM = 5
_SEARCHED_CHARS = 200_000_000
"""Of all texts that the quotes of one answer are looked for in: 100 quotes in 2 million."""
_SEARCHED_CHARS_OF_CHILD = 20_000_000
"""A child's texts may be the policy's own work: then each takes 0.1 microseconds, so 2 s in all,
under no clock of a cell."""
_PLACES_OF_GOLD = 50
"""In the texts that a child was given; the policy wrote them, and may repeat what it likes."""

Interval = tuple[int, int]
Retrieved = dict[str, list[Interval]]
"""Per paper: sorted, disjoint, not touching. A paper without intervals is absent."""

Alternative = tuple[str, int, int]
"""(paper_id, start, end)."""

Evidence = Sequence[Sequence[Alternative]]
"""For each fact its alternatives; any of them is right."""


@dataclass(frozen=True)
class Located:
    """What an answer points at, and what it made up."""

    pieces: dict[str, set[Interval]]
    """Per paper: where each single item stands."""
    invented: int
    """Characters of quotes that stand nowhere, those let off not counted."""
    misses: int = 0
    """Quotes that stand nowhere, those let off counted too."""

    @property
    def retrieved(self) -> Retrieved:
        """The pieces merged: overlaps and repeats count once."""
        return {paper_id: merge(intervals) for paper_id, intervals in self.pieces.items()}


@dataclass(frozen=True)
class Agreement:
    """Plain character agreement with gold, each in [0, 1]."""

    precision: float
    recall: float
    f1: float


def harmonic(precision: float, recall: float) -> float:
    """F1; 0 when both are 0."""
    total = precision + recall
    return 2 * precision * recall / total if total > 0 else 0.0


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """Overlapping and touching intervals as one, in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _items(answer: Any) -> list[Any] | None:
    """The distinct leaves of nested lists; None when any number in it is NaN or infinite."""
    seen: dict[object, Any] = {}
    stack = [answer]
    while stack:
        item = stack.pop()
        if isinstance(item, float) and not isfinite(item):
            return None
        if isinstance(item, list | tuple):
            stack.extend(item)
        elif isinstance(item, str):
            seen.setdefault(item, item)
        elif isinstance(item, dict):
            values = list(item.values())
            if any(isinstance(value, float) and not isfinite(value) for value in values):
                return None
            key = tuple(item.get(name) for name in ("paper_id", "text", "start", "end"))
            # True equals 1 as a key, and is no index.
            if all(type(value) in (str, int, type(None)) for value in key):
                seen.setdefault(key, item)
    return list(seen.values())


def _occurrences(text: str, wanted: str) -> Iterator[Interval]:
    start = text.find(wanted)
    while start >= 0:
        yield start, start + len(wanted)
        start = text.find(wanted, start + 1)


def _places(item: Any, papers: Mapping[str, str], min_chars: int) -> Iterator[Alternative]:
    if isinstance(item, str):
        if len(item) >= min_chars:
            for paper_id, text in papers.items():
                for start, end in _occurrences(text, item):
                    yield paper_id, start, end
        return
    paper_id, wanted = item.get("paper_id"), item.get("text")
    if not isinstance(paper_id, str) or paper_id not in papers:
        return
    text = papers[paper_id]
    if isinstance(wanted, str):
        if len(wanted) >= min_chars:
            for start, end in _occurrences(text, wanted):
                yield paper_id, start, end
        return
    start, end = item.get("start"), item.get("end")
    if isinstance(start, int) and isinstance(end, int) and wanted is None:
        inside = 0 <= start < end <= len(text)
        if inside and end - start >= min_chars:
            yield paper_id, start, end


def _quote(item: Any) -> str | None:
    """The text that an item says stands in a paper; None when it names places instead."""
    text = item if isinstance(item, str) else item.get("text")
    return text if isinstance(text, str) else None


def _searched_chars(items: Iterable[Any], papers: Mapping[str, str], min_chars: int) -> int:
    """Characters of the texts that each quote is looked for in, summed."""
    everywhere = sum(map(len, papers.values()))
    return sum(
        everywhere if isinstance(item, str) else len(papers.get(item.get("paper_id"), ""))
        for item in items
        if len(_quote(item) or "") >= min_chars
    )


def locate(
    answer: Any,
    papers: Mapping[str, str],
    settings: RewardSettings,
    searched_chars: int = _SEARCHED_CHARS,
) -> Located:
    """The characters that an answer points at.

    Args:
        answer: whatever was given to FINAL, as plain JSON values.
        papers: text of each paper.
        settings: `min_span_chars`; `max_items`: an answer with more distinct items than that
            points at nothing, so that scoring stays cheap, and so does one whose items stand at
            five times as many places; `free_misses`: quotes that stand nowhere and cost
            nothing, the longest ones. Were all of them free, an answer could list every
            sentence that might be there.
        searched_chars: an answer whose quotes have to be looked for in more characters points
            at nothing; a bare quote is looked for in all papers.

    Returns:
        Nothing retrieved when nothing stands in a paper, or when a number is not finite.
    """
    items = _items(answer)
    if items is None or len(items) > settings.max_items:
        return Located({}, 0)
    if _searched_chars(items, papers, settings.min_span_chars) > searched_chars:
        return Located({}, 0)
    pieces: dict[str, set[Interval]] = {}
    misses: set[str] = set()
    room = _PLACES_PER_ITEM * settings.max_items
    for item in items:
        found = list(islice(_places(item, papers, settings.min_span_chars), room + 1))
        room -= len(found)
        if room < 0:
            return Located({}, 0)
        for paper_id, start, end in found:
            pieces.setdefault(paper_id, set()).add((start, end))
        quote = _quote(item)
        if not found and quote is not None and len(quote) >= settings.min_span_chars:
            misses.add(quote)
    lengths = sorted(map(len, misses), reverse=True)
    return Located(pieces, sum(lengths[settings.free_misses :]), len(misses))


def overlap(interval: Interval, alternative: Alternative) -> Interval:
    """The part of an interval of the same paper that lies in an alternative; may be empty."""
    _, start, end = alternative
    a, b = max(start, interval[0]), min(end, interval[1])
    return a, max(a, b)


def stretches(retrieved: Retrieved, alternative: Alternative) -> list[Interval]:
    """The retrieved parts of an alternative."""
    parts = (overlap(interval, alternative) for interval in retrieved.get(alternative[0], []))
    return [(a, b) for a, b in parts if b > a]


def size(retrieved: Retrieved) -> int:
    """Retrieved characters in all."""
    return sum(end - start for intervals in retrieved.values() for start, end in intervals)


def right_chars(retrieved: Retrieved, alternatives: Iterable[Alternative]) -> int:
    """Retrieved characters that lie in any of the alternatives, each counted once."""
    parts: dict[str, list[Interval]] = {}
    for alternative in alternatives:
        parts.setdefault(alternative[0], []).extend(stretches(retrieved, alternative))
    return size({paper_id: merge(intervals) for paper_id, intervals in parts.items()})


def longest(fact: Sequence[Alternative]) -> int:
    """Characters of a fact's longest alternative."""
    return max(end - start for _, start, end in fact)


def gold_size(evidence: Evidence) -> int:
    """W: the length of each fact's longest alternative, summed. No answer changes it.

    Raises:
        ValueError: there is no evidence, or an alternative is empty.
    """
    if not evidence or any(
        not fact or any(end <= start for _, start, end in fact) for fact in evidence
    ):
        raise ValueError("a problem needs evidence, and each alternative characters")
    return sum(map(longest, evidence))


def covered_share(retrieved: Retrieved, alternative: Alternative) -> float:
    """Share of an alternative's characters that were retrieved."""
    _, start, end = alternative
    return sum(b - a for a, b in stretches(retrieved, alternative)) / (end - start)


def span_f1(retrieved: Retrieved, evidence: Evidence) -> Agreement:
    """Plain character precision, recall and F1, without any guard: for comparison elsewhere.

    Facts with one alternative are merged intervals per paper, as published work counts them. A
    fact with several weighs as its longest one and counts by the best covered one; of its
    alternatives, none is wrong.

    Raises:
        ValueError: the problem has no evidence.
    """
    gold_size(evidence)  # only to refuse what is no evidence
    single: dict[str, list[Interval]] = {}
    for fact in evidence:
        if len(fact) == 1:
            paper_id, start, end = fact[0]
            single.setdefault(paper_id, []).append((start, end))
    wanted = {paper_id: merge(intervals) for paper_id, intervals in single.items()}
    several = [fact for fact in evidence if len(fact) > 1]
    found = right_chars(retrieved, [(p, *i) for p, intervals in wanted.items() for i in intervals])
    recall = (found + sum(_best_covered(retrieved, fact) for fact in several)) / (
        size(wanted) + sum(map(longest, several))
    )
    right = right_chars(retrieved, (alternative for fact in evidence for alternative in fact))
    precision = right / max(1, size(retrieved))
    return Agreement(precision, recall, harmonic(precision, recall))


def _best_covered(retrieved: Retrieved, fact: Sequence[Alternative]) -> float:
    """Characters that a fact counts for: its length x the best covered share."""
    return longest(fact) * max(covered_share(retrieved, alternative) for alternative in fact)


def frame_score(
    answer: Any,
    given: Mapping[str, str],
    papers: Mapping[str, str],
    evidence: Evidence,
    settings: RewardSettings,
) -> float:
    """A child's own span F1 on the texts it was given, for reports only.

    Args:
        answer: what the child returned.
        given: the texts of its context, under any keys.
        papers: all papers of the problem.
        evidence: all gold of the problem; a fact whose text stands in no given text is not
            the child's to find.
        settings: `min_span_chars`, `max_items`.

    Returns:
        F1; where nothing was there to find, 1 for an answer without any span and else 0; 0 where
        gold stands at more than 50 places, which no paper does.
    """
    found = locate(answer, given, settings, _SEARCHED_CHARS_OF_CHILD).retrieved
    there = []
    for fact in evidence:
        texts = {papers[paper_id][start:end] for paper_id, start, end in fact}
        everywhere = (
            (key, *interval)
            for key, text in given.items()
            for wanted in texts
            for interval in _occurrences(text, wanted)
        )
        places = list(islice(everywhere, _PLACES_OF_GOLD + 1))
        if len(places) > _PLACES_OF_GOLD:
            return 0.0
        if places:
            there.append(places)
    if not there:
        return float(not found)
    return span_f1(found, there).f1
