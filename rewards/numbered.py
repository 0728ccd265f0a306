"""Passages in the text that a reader was given, those that its reply names, and its score.

A reader of numbered passages replies with numbers, and a reader of a single one with yes or no.

The policy writes both, and no clock limits this module: its work grows with their characters.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any

from rewards.settings import RewardSettings
from rewards.spans import (
    Alternative,
    Evidence,
    Located,
    Retrieved,
    merge,
    occurrences,
    span_f1,
)

_KEY = re.compile(r"^[(\[]?([0-9]{1,4})[)\].:]{0,2}[ \t]", re.MULTILINE)
"""Number at the start of a line: `7 `, `7. `, `7: `, `(7) `, `[7] `."""
_GAP = re.compile(r"[\s,;]+")
_AROUND = "()[]{}.:'\"`*"
_LEAST_NUMBERS = 0.25
"""Share of numbers among the words of a list of numbers; with fewer, a text merely has some."""
_LONGEST_NO = 40
"""Characters of a reply without any number, such as `none`."""
_SEARCHED_CHARS = 100_000_000
"""Limit of passages times characters of the papers in which they are looked for."""
_CHARS_OF_PIECE, _CHARS_OF_ALTERNATIVE = 200, 1000
"""Searched characters that take as long as a piece of the answer, or an alternative, in an F1."""

_PLACES = 50
"""Places of a passage in a paper that are looked at."""
_SINGLE = -1
"""Number of the passage of a reader that says yes or no; texts have no such number."""

Reader = tuple[Mapping[str, str], Any]
"""Text that a child was given, under any key, and the value that it returned."""


def shown_and_named(readers: Iterable[Reader]) -> tuple[set[str], set[str]]:
    """Passages that readers were shown, and those of them that their replies name.

    Args:
        readers: children that ended with an answer. One that was given several texts, or that
            replied something else than numbers, yes or no, is no reader.
    """
    shown: set[str] = set()
    named: set[str] = set()
    for given, answer in readers:
        if len(given) != 1:
            continue
        (text,) = given.values()
        passages, numbers = _choice(text, answer)
        if numbers is None:
            continue
        shown.update(passages.values())
        named.update(passages[number] for number in numbers if number in passages)
    return shown, named


def reader_scores(
    readers: Mapping[int, tuple[str, Any]],
    papers: Mapping[str, str],
    located: Located,
    evidence: Evidence,
    settings: RewardSettings,
) -> dict[int, float]:
    """What each reader's reply is worth to the answer, by frame; -1 to 1.

    A passage is worth the plain F1 of the whole answer with it less that without it. A reader that
    names a passage has this worth, and one that doesn't has its negative, so what it gains is what
    the answer would lose if the reply were turned around. Of several passages the sum counts, and
    the same one once. A reply that neither names anything nor says no is wrong about each, where
    passages are numbered or the first or last line asks for "yes or no".

    A child has no score if it was shown no passages to choose from, or something that is not in the
    papers word for word: then "no" might be wrong, or right about nothing.

    Args:
        readers: what each was given, and its reply.
        papers, evidence: of the problem.
        located: answer of the root.
        settings: `min_span_chars`.
    """
    before = located.retrieved

    @cache
    def worth(passage: str) -> float | None:
        places = _places(passage, papers)
        if not places:
            return None
        if places[0][2] - places[0][1] < settings.min_span_chars:
            return 0.0
        return _worth(places, located, before, evidence)

    chars, alternatives = sum(map(len, papers.values())), sum(map(len, evidence))
    pieces = sum(map(len, located.pieces.values()))
    work = chars + _CHARS_OF_PIECE * pieces + _CHARS_OF_ALTERNATIVE * alternatives
    most = _SEARCHED_CHARS // max(1, len(readers) * work)
    scores = {}
    for frame, (text, answer) in readers.items():
        for passages, named in _choices(text, answer):
            if len(passages) > most:
                break
            worths = {passage: worth(passage) for passage in passages.values()}
            chosen = {passages[number] for number in named or () if number in passages}
            total = 0.0
            for passage, value in worths.items():
                if value is None:
                    break
                total += -abs(value) if named is None else value if passage in chosen else -value
            else:
                scores[frame] = max(-1.0, min(1.0, total))
                break
    return scores


def _choices(text: str, answer: Any) -> Iterator[tuple[dict[int, str], set[int] | None]]:
    """Passages that a reader may have been shown, and its numbers; None if it has chosen nothing.

    A single passage comes first, because its lines may begin with numbers.
    """
    verdict = replied_verdict(answer)
    if verdict is not None or any(_asks(text)):
        choice = None if verdict is None else {_SINGLE} if verdict else set[int]()
        for passage in _singles(text):
            yield {_SINGLE: passage}, choice
    passages, numbers = numbered_passages(text), replied_numbers(answer)
    if len(passages) > 1 or (passages and numbers is not None):
        yield passages, (numbers or None) if verdict else numbers


def _asks(text: str) -> list[bool]:
    """Whether the first line of a prompt asks for yes or no, and whether the last one does."""
    lines = text.partition("\n")[0], text.rpartition("\n")[2]
    return ["yes or no" in line.lower() for line in lines]


def _singles(text: str) -> list[str]:
    """Passages that a prompt about a single one may mean: what is beside its question's line."""
    before, after = text.rpartition("\n")[0] or text, text.partition("\n")[2] or text
    first, last = _asks(text)
    return [after] if first else [before] if last else [after, before]


def _worth(
    places: Sequence[Alternative], located: Located, before: Retrieved, evidence: Evidence
) -> float:
    """F1 of the answer with a passage, less that without it.

    Items within a place of the passage are the passage; those that stick out come from elsewhere.
    If there are none, the first place in gold is added.
    """
    length = places[0][2] - places[0][1]
    starts: dict[str, list[int]] = {}
    for paper_id, start, _ in places:
        starts.setdefault(paper_id, []).append(start)
    without = dict(before)
    for paper_id, first in starts.items():
        pieces = located.pieces.get(paper_id, set())
        # The last place that begins before a piece is the one that ends last.
        others = [
            (a, b)
            for a, b in pieces
            if not (k := bisect_right(first, a)) or b > first[k - 1] + length
        ]
        if len(others) < len(pieces):
            without[paper_id] = merge(others)
    with_it = before
    if without == before:
        gold = {place for fact in evidence for place in fact}
        inside = (place for place in places if any(_meet(place, other) for other in gold))
        paper_id, start, end = next(inside, places[0])
        with_it = {**before, paper_id: merge([*before.get(paper_id, []), (start, end)])}
    return span_f1(with_it, evidence).f1 - span_f1(without, evidence).f1


def _meet(one: Alternative, two: Alternative) -> bool:
    return one[0] == two[0] and one[1] < two[2] and two[1] < one[2]


def _places(passage: str, papers: Mapping[str, str]) -> list[Alternative]:
    """Places of a passage in the papers, or without its last line, which may be the question."""
    for part in (passage, passage.rpartition("\n")[0]):
        everywhere = (
            (paper_id, *place)
            for paper_id, text in papers.items()
            for place in islice(occurrences(text, part), _PLACES)
        )
        if part and (found := list(islice(everywhere, _PLACES))):
            return found
    return []


def holds_gold(passage: str, paper: str, start: int, end: int, cover: float) -> bool:
    """Whether a passage lies in gold [start, end) of a paper, or covers that share of it."""
    at = paper.find(passage)
    for _ in range(_PLACES):
        if at < 0:
            return False
        common = min(at + len(passage), end) - max(at, start)
        if common == len(passage) or common >= cover * (end - start):
            return True
        at = paper.find(passage, at + 1)
    return False


def _choice(text: str, answer: Any) -> tuple[dict[int, str], set[int] | None]:
    """Passages in a reader's text by number, and the numbers of its reply; None if it has none."""
    passages = numbered_passages(text)
    numbers = replied_numbers(answer) if passages else None
    verdict = replied_verdict(answer)
    # The question has a line of its own beside the passage, whose lines may begin with numbers.
    if verdict or ((verdict is not None or any(_asks(text))) and len(passages) < 2):
        choice = None if verdict is None else {_SINGLE} if verdict else set()
        return {_SINGLE: _singles(text)[0]}, choice
    return passages, numbers


def numbered_passages(text: str) -> dict[int, str]:
    """Passages by number, each from a line that starts with it to the next such line.

    A passage may have lines that start with numbers of their own. So the longest run of lines
    counts whose numbers rise.
    """
    matches = list(_KEY.finditer(text))
    before: list[int] = []
    least: list[int] = []  # by length of a run, the least number that ends one
    ends: list[int] = []  # the index of that line
    for index, match in enumerate(matches):
        number = int(match[1])
        length = bisect_left(least, number)
        before.append(ends[length - 1] if length else -1)
        least[length : length + 1] = [number]
        ends[length : length + 1] = [index]
    run = []
    index = ends[-1] if ends else -1
    while index >= 0:
        run.append(matches[index])
        index = before[index]
    passages = {}
    stop = len(text)
    for match in run:  # the last one first
        passages[int(match[1])] = text[match.end() : stop].strip()
        stop = match.start()
    return {number: passage for number, passage in passages.items() if passage}


def replied_verdict(answer: Any) -> bool | None:
    """Whether a short reply begins with yes or no; None if it does with neither."""
    if not isinstance(answer, str) or len(answer) > _LONGEST_NO:
        return None
    word = next(_words([answer]), "").lower()
    return word == "yes" if word in ("yes", "no") else None


def replied_numbers(answer: Any) -> set[int] | None:
    """Numbers of a reply; empty for `none`, an empty list and the like, None for anything else."""
    items = answer if isinstance(answer, list) else [answer]
    if all(type(item) is int for item in items):
        return set(items)
    if not all(isinstance(item, str) for item in items):
        return None if answer is not None else set()
    words = list(_words(items))
    numbers = {int(word) for word in words if _is_number(word)}
    if not numbers:
        return set() if sum(map(len, items)) <= _LONGEST_NO else None
    count = sum(map(_is_number, words))
    return numbers if count >= _LEAST_NUMBERS * len(words) else None


def _words(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from filter(None, (word.strip(_AROUND) for word in _GAP.split(text)))


def _is_number(word: str) -> bool:
    """Whether a word is a number that may be a key: `int` refuses those of thousands of digits."""
    return len(word) <= 4 and word.isascii() and word.isdigit()
