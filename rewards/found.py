"""The papers whose evidence children found, as process quality counts them.

Showing a paper proves nothing, whether it is printed, in a prompt or given to an idle child. A
child that returns the evidence has found it. Returning more than half of what they were given,
alone or together, counts as no choice. A reader that is shown numbered passages returns those whose
numbers it replies; all readers of an episode are one child, because a reader of a single passage
can only return all or nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from typing import Any

from rewards.numbered import Child, shown_and_named
from rewards.papers_read import Lines
from rewards.spans import Evidence, distinct_items, quoted_text

_MOST_RETURNED = 0.5
"""Share of the given characters; a child that returns more has chosen nothing."""
_TILE = 12
"""Characters of the pieces of papers by which several children are judged together."""


def papers_found(
    papers: Mapping[str, str], evidence: Evidence, children: Iterable[Child], min_cover: float
) -> frozenset[str]:
    """Ids of the papers whose evidence a child was given and has returned.

    The work grows with the characters of the spans, the given texts and the returned values.

    Args:
        papers: text of each paper.
        evidence: alternatives of each fact.
        children: children that ended with an answer.
        min_cover: share of a span that a quote must contain, from its start or to its end.
    """
    spans: dict[str, set[str]] = {}
    for paper_id, start, end in (place for fact in evidence for place in fact):
        spans.setdefault(papers[paper_id][start:end], set()).add(paper_id)
    returns = list(children)
    shown, named = map("\0".join, shown_and_named(returns))
    chosen: list[tuple[str, str]] = []
    for given, answer in returns:
        whole = "\0".join(given.values())
        quotes: list[str] = []
        left = _MOST_RETURNED * len(whole)
        for quote in _quotes(answer, given):
            quotes.append(quote)
            left -= len(quote)
            if left < 0:
                break
        if quotes and left >= 0:
            chosen.append((whole, "\0".join(quotes)))
    if _is_most(papers, [*chosen, (shown, named)]):
        chosen, named = [], ""
    paper_ids: set[str] = set()
    for span, ids in spans.items():
        if _is_in(span, named, min_cover) or any(
            span in whole and _is_in(span, returned, min_cover) for whole, returned in chosen
        ):
            paper_ids |= ids
    return frozenset(paper_ids)


def _is_most(papers: Mapping[str, str], chosen: Iterable[tuple[str, str]]) -> bool:
    """Whether children together returned more than half of the papers' text that they were given.

    Text counts once, however often, in whatever order and between whatever filler it was given.
    """
    tiles = Lines(
        paper[at : at + _TILE] for paper in papers.values() for at in range(0, len(paper), _TILE)
    )
    pairs = [(whole, tiles.shown([returned])) for whole, returned in chosen]
    given = tiles.shown(whole for whole, shown in pairs if shown)
    # Without a piece, nothing of the papers was there to choose from.
    returned = set().union(*(shown for _, shown in pairs))
    return not given or len(returned) > _MOST_RETURNED * len(given)


def _is_in(span: str, text: str, min_cover: float) -> bool:
    """Whether a text contains a span, or nearly all of it from its start or to its end."""
    least = ceil(min_cover * len(span) - 1e-9)  # the same rounding as in the primary
    return span[:least] in text or span[-least:] in text


def _quotes(answer: Any, given: Mapping[str, str]) -> Iterator[str]:
    """Texts that the distinct items of a child's answer quote, or name by their place."""
    for item in distinct_items(answer, given) or ():
        text = quoted_text(item)
        if text is not None:
            yield text
        elif item.get("text") is None:
            there = given.get(item.get("paper_id"), "")
            start, end = item.get("start"), item.get("end")
            if isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= len(there):
                yield there[start:end]
