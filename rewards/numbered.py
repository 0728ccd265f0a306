"""Passages in the text that a reader was given, and those that its reply names.

A reader of numbered passages replies with numbers, and a reader of a single one with yes or no.

The policy writes both, and no clock limits this module: its work grows with their characters.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from rewards.spans import occurrences

ASKS = "yes or no"
"""Words by which the first or the last line of a prompt asks about a single passage."""
_KEY = re.compile(r"^[(\[]?([0-9]{1,4})[)\].:]{0,2}[ \t]", re.MULTILINE)
"""Number at the start of a line: `7 `, `7. `, `7: `, `(7) `, `[7] `."""
_VERDICT = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)
_GAP = re.compile(r"[\s,;]+")
_AROUND = "()[]{}.:'\"`*"
_LEAST_NUMBERS = 0.25
"""Share of numbers among the words of a list of numbers; with fewer, a text merely has some."""
_LONGEST_NO = 40
"""Characters of a reply without any number, such as `none`."""
_PLACES = 50
"""Places of a passage in a paper that are looked at."""

Child = tuple[Mapping[str, str], Any]
"""Texts that a child was given, under any keys, and the value that it returned."""


def shown_and_named(readers: Iterable[Child]) -> tuple[set[str], set[str]]:
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
        if (verdict := replied_verdict(answer)) is not None:
            passage = _single(text)
            shown.add(passage)
            if verdict:
                named.add(passage)
            continue
        passages = {} if _asks(text) else numbered_passages(text)  # one may begin with a number
        if passages and (numbers := replied_numbers(answer)) is not None:
            shown.update(passages.values())
            named.update(passages[number] for number in numbers if number in passages)
    return shown, named


def _asks(text: str) -> bool:
    """Whether the first or the last line of a prompt asks for yes or no."""
    return ASKS in text.partition("\n")[0].lower() or ASKS in text.rpartition("\n")[2].lower()


def _single(text: str) -> str:
    """Passage of a prompt about a single one: what is beside its question's line.

    If the last line asks what the first one says, too, it's what is between them.
    """
    question, _, rest = text.partition("\n")
    before, _, asked = text.rpartition("\n")
    if ASKS not in asked.lower():
        return rest or text
    between = rest.rpartition("\n")[0] if question in asked else ""
    return between or before or text


def holds_gold(passage: str, paper: str, start: int, end: int, cover: float) -> bool:
    """Whether a passage lies in gold [start, end) of a paper, or covers that share of it."""
    common = (min(b, end) - max(a, start) for a, b in islice(occurrences(paper, passage), _PLACES))
    return any(c == len(passage) or c >= cover * (end - start) for c in common)


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
    word = _VERDICT.match(answer)
    return None if word is None else word[1].lower() == "yes"


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
    return numbers if sum(map(_is_number, words)) >= _LEAST_NUMBERS * len(words) else None


def _words(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from filter(None, (word.strip(_AROUND) for word in _GAP.split(text)))


def _is_number(word: str) -> bool:
    """Whether a word is a number that may be a key: `int` refuses those of thousands of digits."""
    return len(word) <= 4 and word.isascii() and word.isdigit()
