"""Links between problems, and leaks: links between problems of different splits.

Two problems are linked by a shared or similar paper, by nearly the same question, or by the
collection that their rows set. Problems linked over any number of steps are one collection.
`tasks/validate.py` checks that `leaks` finds nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

from env.problems.schema import SPLITS, Problem
from tasks.data.settings import SplitSettings

SIMILAR_QUESTIONS = 90.0
"""Percent of common words from which questions with the same names and numbers are the same."""
_SENTENCE_CHARS = 20
"""Shorter sentences ("Introduction.", "See Table 2.") occur in unrelated papers."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<!\s)\s*\n\s*")
_WORD = re.compile(r"\w+")
_DIGIT = re.compile(r"\d")
_FIRST_LETTER = 0x10000
"""First code point for words, above all surrogates."""
_CHUNK = 512
"""Number of questions compared with all others at a time."""

LinkKind = Literal["paper", "question", "collection"]


@dataclass(frozen=True)
class Leak:
    """Two problems of different splits that have something in common."""

    kind: LinkKind
    first: str
    """Id of the problem in the earlier split, in the order train, validation, test."""
    second: str
    similarity: float
    """Share of common sentences or words, 0 to 1; 1 for the same collection."""


_Pair = tuple[LinkKind, int, int, float]
"""Kind, indices of two linked problems, and similarity."""


def leaks(problems: Sequence[Problem], settings: SplitSettings) -> list[Leak]:
    """Links between problems of different splits; empty if nothing leaks.

    Args:
        problems: problems of all splits.
        settings: similarities from which papers and questions count as the same.

    Returns:
        For each problem, kind and earlier split: the most similar problem of that split.
    """
    splits = [SPLITS.index(problem.split) for problem in problems]
    worst: dict[tuple[LinkKind, int, int], tuple[float, int]] = {}
    for kind, *pair, similarity in _pairs(problems, settings, splits):
        one, two = sorted(pair, key=lambda i: splits[i])
        if splits[one] == splits[two]:
            continue
        key = (kind, two, splits[one])
        # The earliest of equally similar ones, so that every process names the same.
        worst[key] = max(worst.get(key, (0.0, -one)), (similarity, -one))
    return [
        Leak(kind, problems[-one].problem_id, problems[two].problem_id, round(similarity, 4))
        for (kind, two, _), (similarity, one) in sorted(worst.items(), key=lambda item: item[0][1:])
    ]


def collections(problems: Sequence[Problem], settings: SplitSettings) -> list[int]:
    """Collection of each problem, as the index of the collection's first member."""
    parents = list(range(len(problems)))
    for _, *pair, _ in _pairs(problems, settings):
        one, two = sorted(_root(parents, i) for i in pair)
        parents[two] = one
    return [_root(parents, i) for i in range(len(problems))]


def _root(parents: list[int], i: int) -> int:
    while parents[i] != i:
        parents[i] = parents[parents[i]]
        i = parents[i]
    return i


def _pairs(
    problems: Sequence[Problem], settings: SplitSettings, splits: Sequence[int] | None = None
) -> Iterator[_Pair]:
    """Linked pairs, enough to connect every collection.

    Args:
        problems: problems to compare.
        settings: similarities from which papers and questions count as the same.
        splits: split of each problem. If given, the pairs include each problem with its most
            similar one of each other split.
    """
    yield from _same_collection(problems, splits)
    yield from _same_papers(problems, settings.similar_papers, splits)
    yield from _same_questions(problems, SIMILAR_QUESTIONS, splits)


def _chain(
    kind: LinkKind, members: Iterable[int], similarity: float, splits: Sequence[int] | None
) -> Iterator[_Pair]:
    """Few pairs that connect all members: each with the first member of each split."""
    firsts: dict[int, int] = {}
    rest: list[int] = []
    for i in members:
        if firsts.setdefault(splits[i] if splits else 0, i) != i:
            rest.append(i)
    anchors = list(firsts.values())
    for i in [*anchors, *rest]:
        for anchor in anchors:
            if anchor != i:
                yield kind, anchor, i, similarity


def _same_collection(problems: Sequence[Problem], splits: Sequence[int] | None) -> Iterator[_Pair]:
    members: dict[str, list[int]] = defaultdict(list)
    for i, problem in enumerate(problems):
        members[problem.collection_id].append(i)
    for places in members.values():
        yield from _chain("collection", places, 1.0, splits)


def sentences(text: str) -> frozenset[int]:
    """Hashes of a paper's sentences of at least 20 characters; papers are compared by them.

    Hashes save memory, because thousands of long papers are compared at once. A collision of two
    64-bit hashes changes a share by at most one sentence.
    """
    parts = (" ".join(part.split()).casefold() for part in _SENTENCE_END.split(text))
    return frozenset(hash(part) for part in parts if len(part) >= _SENTENCE_CHARS)


def _same_papers(
    problems: Sequence[Problem], least: float, splits: Sequence[int] | None
) -> Iterator[_Pair]:
    holders: dict[str, dict[int, None]] = defaultdict(dict)
    for i, problem in enumerate(problems):
        for paper in problem.papers:
            holders[paper.text][i] = None
    members = [list(one) for one in holders.values()]
    for places in members:
        yield from _chain("paper", places, 1.0, splits)
    in_splits = [{splits[i] for i in places} for places in members] if splits else None
    for one, two, similarity in _similar([sentences(text) for text in holders], least, in_splits):
        # Pair each holder of one paper with a holder of the other, in both directions.
        for here, there in ((members[one], members[two]), (members[two], members[one])):
            anchors = {splits[i] if splits else 0: i for i in reversed(here)}
            for anchor in anchors.values():
                for i in there:
                    if i != anchor:
                        yield "paper", anchor, i, similarity


def _similar(
    sets: Sequence[frozenset[int]], least: float, in_splits: Sequence[set[int]] | None
) -> Iterator[tuple[int, int, float]]:
    """Pairs of sets that share at least this part of the smaller one, with the shared part.

    Only the rarest `n - ceil(least n) + 1` members of the smaller set are looked up. No pair is
    missed, because the other set contains at least one of them.
    """
    holders: dict[int, list[int]] = defaultdict(list)
    for i, members in enumerate(sets):
        for member in members:
            holders[member].append(i)
    for i, members in enumerate(sets):
        needed = ceil(least * len(members) - 1e-9)
        by_rarity = sorted(members, key=lambda member: len(holders[member]))
        candidates = {
            other
            for member in by_rarity[: len(members) - needed + 1]
            for other in holders[member]
            if (len(sets[other]), other) > (len(members), i)
        }
        for other in candidates:
            if in_splits and len(in_splits[i] | in_splits[other]) == 1:
                continue
            common = len(members & sets[other])
            if common >= needed:
                yield i, other, common / len(members)


def named(question: str) -> tuple[str, ...]:
    """Sorted names and numbers of a question; questions that differ in them are different.

    Names are words with a capital, except the first word of the sentence.
    """
    words = enumerate(_WORD.findall(question))
    return tuple(sorted(w for i, w in words if _DIGIT.search(w) or (i and w != w.lower())))


def _same_questions(
    problems: Sequence[Problem], least: float, splits: Sequence[int] | None
) -> Iterator[_Pair]:
    """Pairs of questions with the same names and numbers and nearly the same words."""
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, problem in enumerate(problems):
        alike[named(problem.question)].append(i)
    for members in alike.values():
        yield from _nearly_equal([problems[i].question for i in members], members, least, splits)


def _nearly_equal(
    questions: Sequence[str], places: Sequence[int], least: float, splits: Sequence[int] | None
) -> Iterator[_Pair]:
    import numpy as np
    from rapidfuzz import fuzz, process

    # Each word becomes one character, so that `ratio` counts words.
    letters: dict[str, str] = {}
    holders: dict[str, list[int]] = defaultdict(list)
    for question, place in zip(questions, places, strict=True):
        words = sorted(_WORD.findall(question.casefold()))
        coded = (letters.setdefault(w, chr(_FIRST_LETTER + len(letters))) for w in words)
        holders["".join(coded)].append(place)
    for places in holders.values():
        yield from _chain("question", places, 1.0, splits)
    different = list(holders)
    for start in range(0, len(different), _CHUNK):
        chunk = different[start : start + _CHUNK]
        scores = process.cdist(
            chunk, different[start:], scorer=fuzz.ratio, score_cutoff=least, dtype=np.float32
        )
        for row, column in zip(*np.nonzero(scores), strict=True):
            if column <= row:
                continue
            for i in holders[chunk[row]]:
                for j in holders[different[start + column]]:
                    yield "question", i, j, float(scores[row, column]) / 100
