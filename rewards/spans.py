"""Spans: where the items of an answer occur in the papers, and how they agree with gold.

An answer is one item or a list of items, nested to any depth. An item is a bare string, which
counts at every place where it occurs, `{"paper_id", "text"}`, the same as a pair `[paper_id, text]`
(so what `rank` returns is an answer), or `{"paper_id", "start", "end"}`.
Items that do not occur verbatim, are too short or have another shape are ignored. No answer
raises an exception. Intervals are half-open and count Unicode code points.
"""

from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from math import isfinite
from operator import itemgetter
from typing import Any

from rewards.settings import RewardSettings

_PLACES_PER_ITEM = 5
_SEARCHED_CHARS = 200_000_000
"""Limit of quotes times searched characters of one answer: 100 quotes in 2 million characters.
The quotes at all places where they occur have the same limit."""

CharInterval = tuple[int, int]
Retrieved = dict[str, list[CharInterval]]
"""Intervals by paper: sorted, disjoint, not touching. A paper without intervals is absent."""

Alternative = tuple[str, int, int]
"""(paper_id, start, end)."""

Evidence = Sequence[Sequence[Alternative]]
"""Alternatives of each fact; any one of them is correct."""


@dataclass(frozen=True)
class Located:
    """Intervals that an answer retrieves, and the size of its invented quotes."""

    pieces: dict[str, set[CharInterval]]
    """Intervals of the single items, by paper."""
    invented: int
    """Characters of quotes that occur in no paper, without the free ones."""
    misses: int = 0
    """Number of quotes that occur in no paper, with the free ones."""

    @property
    def retrieved(self) -> Retrieved:
        """Merged pieces: overlaps and repeats count once."""
        return {paper_id: merge(intervals) for paper_id, intervals in self.pieces.items()}


@dataclass(frozen=True)
class Agreement:
    """Plain character agreement with gold; each value is in [0, 1]."""

    precision: float
    recall: float
    f1: float


def harmonic(precision: float, recall: float) -> float:
    """F1; 0 if both are 0."""
    total = precision + recall
    return 2 * precision * recall / total if total > 0 else 0.0


def merge(intervals: Iterable[CharInterval]) -> list[CharInterval]:
    """Sorted intervals, in which overlapping and touching ones are joined."""
    merged: list[CharInterval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def distinct_items(answer: Any, paper_ids: Container[str] = ()) -> list[Any] | None:
    """The distinct items of nested lists; None if any number is NaN or infinite.

    Args:
        answer: plain JSON values.
        paper_ids: a text after one of them, in a list of two, is quoted from that paper.
    """
    seen: dict[object, Any] = {}
    stack = [answer]
    while stack:
        item = stack.pop()
        if isinstance(item, float) and not isfinite(item):
            return None
        if isinstance(item, list | tuple):
            if (
                len(item) == 2
                and all(isinstance(one, str) for one in item)
                and item[0] in paper_ids
            ):
                stack.append({"paper_id": item[0], "text": item[1]})
            else:
                stack.extend(item)
        elif isinstance(item, str):
            seen.setdefault(item, item)
        elif isinstance(item, dict):
            values = list(item.values())
            if any(isinstance(value, float) and not isfinite(value) for value in values):
                return None
            key = tuple(item.get(name) for name in ("paper_id", "text", "start", "end"))
            # True equals 1 as a key, but it is not an index.
            if all(type(value) in (str, int, type(None)) for value in key):
                seen.setdefault(key, item)
    return list(seen.values())


def occurrences(text: str, wanted: str) -> Iterator[CharInterval]:
    """Places of a text in another, also those that overlap."""
    start = text.find(wanted)
    while start >= 0:
        yield start, start + len(wanted)
        start = text.find(wanted, start + 1)


def _places(item: Any, papers: Mapping[str, str], min_chars: int) -> Iterator[Alternative]:
    """Each place in the papers that an item names or quotes, if it is long enough."""
    wanted: Any = item
    if isinstance(item, dict):
        paper_id, wanted = item.get("paper_id"), item.get("text")
        if not isinstance(paper_id, str) or paper_id not in papers:
            return
        papers = {paper_id: papers[paper_id]}
        start, end = item.get("start"), item.get("end")
        if isinstance(start, int) and isinstance(end, int) and wanted is None:
            inside = 0 <= start < end <= len(papers[paper_id])
            if inside and end - start >= min_chars:
                yield paper_id, start, end
    if isinstance(wanted, str) and len(wanted) >= min_chars:
        for paper_id, text in papers.items():
            for start, end in occurrences(text, wanted):
                yield paper_id, start, end


def quoted_text(item: Any) -> str | None:
    """The text that an item quotes; None if the item names a place instead."""
    text = item if isinstance(item, str) else item.get("text")
    return text if isinstance(text, str) else None


def _searched_chars(items: Iterable[Any], papers: Mapping[str, str], min_chars: int) -> int:
    """Characters of the texts in which each quote is searched, summed over the quotes."""
    everywhere = sum(map(len, papers.values()))
    return sum(
        everywhere if isinstance(item, str) else len(papers.get(item.get("paper_id"), ""))
        for item in items
        if len(quoted_text(item) or "") >= min_chars
    )


def locate(answer: Any, papers: Mapping[str, str], settings: RewardSettings) -> Located:
    """Locate the characters that an answer retrieves.

    Limits keep scoring cheap: an answer that exceeds one retrieves nothing.

    Args:
        answer: value that was passed to FINAL, as plain JSON values.
        papers: text of each paper.
        settings: `min_span_chars`. `max_items` limits distinct items; five times as many places
            are allowed. `free_misses` is the number of quotes in no paper that cost nothing,
            longest first. If all were free, an answer could list every possible sentence.

    Returns:
        No pieces if no item occurs in a paper, or if a number is not finite.
    """
    items = distinct_items(answer, papers)
    if items is None or len(items) > settings.max_items:
        return Located({}, 0)
    if _searched_chars(items, papers, settings.min_span_chars) > _SEARCHED_CHARS:
        return Located({}, 0)
    # Shorter texts contain no span, but each search of one has a cost.
    papers = {key: text for key, text in papers.items() if len(text) >= settings.min_span_chars}
    left = _SEARCHED_CHARS
    pieces: dict[str, set[CharInterval]] = {}
    misses: set[str] = set()
    room = _PLACES_PER_ITEM * settings.max_items
    for item in items:
        quote = quoted_text(item)
        each = len(quote or "") or 1
        most = min(room, left // each)
        places = list(islice(_places(item, papers, settings.min_span_chars), most + 1))
        if len(places) > most:
            return Located({}, 0)
        room -= len(places)
        left -= len(places) * each
        for paper_id, start, end in places:
            pieces.setdefault(paper_id, set()).add((start, end))
        if not places and quote is not None and len(quote) >= settings.min_span_chars:
            misses.add(quote)
    lengths = sorted(map(len, misses), reverse=True)
    return Located(pieces, sum(lengths[settings.free_misses :]), len(misses))


def overlap(interval: CharInterval, alternative: Alternative) -> CharInterval:
    """The part of an interval of the same paper that is inside an alternative; may be empty."""
    _, start, end = alternative
    a, b = max(start, interval[0]), min(end, interval[1])
    return a, max(a, b)


def stretches(retrieved: Retrieved, alternative: Alternative) -> list[CharInterval]:
    """The retrieved parts of an alternative."""
    paper_id, start, end = alternative
    intervals = retrieved.get(paper_id, [])
    first = bisect_right(intervals, start, key=itemgetter(1))
    after = (intervals[k] for k in range(first, len(intervals)))
    inside = takewhile(lambda interval: interval[0] < end, after)
    return [overlap(interval, alternative) for interval in inside]


def size(retrieved: Retrieved) -> int:
    """Number of retrieved characters."""
    return sum(end - start for intervals in retrieved.values() for start, end in intervals)


def right_chars(retrieved: Retrieved, alternatives: Iterable[Alternative]) -> int:
    """Number of retrieved characters inside any of the alternatives, each counted once."""
    parts: dict[str, list[CharInterval]] = {}
    for alternative in alternatives:
        parts.setdefault(alternative[0], []).extend(stretches(retrieved, alternative))
    return size({paper_id: merge(intervals) for paper_id, intervals in parts.items()})


def gold_sources(evidence: Evidence) -> set[frozenset[str]]:
    """The sources of the evidence: for each fact, the set of papers that contain it."""
    return {frozenset(paper_id for paper_id, _, _ in fact) for fact in evidence}


def longest(fact: Sequence[Alternative]) -> int:
    """Characters of a fact's longest alternative."""
    return max(end - start for _, start, end in fact)


def gold_size(evidence: Evidence) -> int:
    """W: the length of each fact's longest alternative, summed. No answer changes it.

    Raises:
        ValueError: the problem has no evidence, or an alternative is empty.
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
    """Plain character precision, recall and F1 without guards, for comparison with other work.

    Facts with one alternative are merged intervals per paper, as in published work. A fact with
    several weighs as much as its longest one, and the best covered one counts. None of its
    alternatives is wrong.

    Raises:
        ValueError: the problem has no evidence.
    """
    gold_size(evidence)  # only for its exceptions
    single: dict[str, list[CharInterval]] = {}
    for fact in evidence:
        if len(fact) == 1:
            paper_id, start, end = fact[0]
            single.setdefault(paper_id, []).append((start, end))
    wanted = {paper_id: merge(intervals) for paper_id, intervals in single.items()}
    several = [fact for fact in evidence if len(fact) > 1]
    chars = right_chars(retrieved, [(p, *i) for p, intervals in wanted.items() for i in intervals])
    best = (longest(f) * max(covered_share(retrieved, one) for one in f) for f in several)
    recall = (chars + sum(best)) / (size(wanted) + sum(map(longest, several)))
    right = right_chars(retrieved, (alternative for fact in evidence for alternative in fact))
    precision = right / max(1, size(retrieved))
    return Agreement(precision, recall, harmonic(precision, recall))


# --- metrics beside the reward: they are reported and never trained on, and have no guards; the
# cheats that would earn them are in docs/rewards.md


def exact_match(located: Located, evidence: Evidence) -> bool:
    """Whether every fact is covered whole, nothing else is retrieved, and every quote occurs."""
    retrieved = located.retrieved
    whole = [[a for a in fact if covered_share(retrieved, a) == 1.0] for fact in evidence]
    exact = right_chars(retrieved, (a for some in whole for a in some)) == size(retrieved)
    return all(whole) and exact and not located.misses


def paper_f1(retrieved: Retrieved, evidence: Evidence) -> float:
    """F1 of the papers that contain the answer's spans, in [0, 1].

    Recall counts `gold_sources`: the papers of one fact's alternatives are one source, and any
    of them finds it. Papers without evidence are wrong.
    """
    sources = gold_sources(evidence)
    hits = sum(1 for source in sources if source & retrieved.keys())
    wrong = len(retrieved.keys() - {paper_id for source in sources for paper_id in source})
    return harmonic(hits / max(1, hits + wrong), hits / len(sources))
