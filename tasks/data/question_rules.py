"""Rough questions about documents, by rules: no model is asked.

A rule finds a name, and asks for all sentences of some documents that name it, define it, or give
numbers for it. So the gold is complete by construction, but the questions are templates. The
command `draft-questions` also takes from here how documents share rows, and which names they share.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeVar

from tasks.data.splits import SPLITS

_T = TypeVar("_T")
GROUP = 4
"""Most documents of a row."""
MOST_GOLD = 5
"""Most sentences of an answer; a more frequent name is about nothing in particular."""
_CHARS = range(30, 400)
"""Characters of a sentence that can be a quote."""
_LETTERS = 0.6
"""Least share of letters in such a sentence."""
_LINES = 4
_NAME_WORDS = 3
_WORD = re.compile(r"\w(?:[\w.-]*\w)?")
_STOP = re.compile(r"[.!?][\"')\]]?(?=\s|$)")
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,3}[.)])\s+")
_DEFINES = r"(?:The |An? )?{}(?: \([^()]{{1,40}}\))? (?:is|are|was|were|means|denotes|refers to)\s"
_SHORT = re.compile(r"dr|mrs?|ms|prof|st|figs?|eq|no|vs|cf|al|approx|e\.g|i\.e|etc|\w")
"""Abbreviations and initials whose dot ends no sentence."""
_COMMON = re.compile(
    "an?|and|as|at|but|by|for|from|he|her|his|how|if|in|its?|no|not|of|on|or|she|so|that|the|their|"
    "then|there|these|they|this|those|to|we|what|when|where|which|who|why|with|you"
)
"""Words that are not names, even where they are capitalised."""


@dataclass(frozen=True)
class DraftedQuestion:
    """A question about some documents, and the quotes that answer it."""

    text: str
    documents: tuple[str, ...]
    quotes: tuple[tuple[str, str], ...]
    """Document and text of each quote."""

    def row(self, problem_id: str) -> dict[str, Any]:
        """The question as a row that `check-problems` reads."""
        evidence = [{"document": document, "quote": quote} for document, quote in self.quotes]
        return {
            "problem_id": problem_id,
            "question": self.text,
            "documents": list(self.documents),
            "evidence": evidence,
        }


@dataclass(frozen=True)
class Sentence:
    """Characters [start, end) of a document."""

    document: str
    start: int
    end: int
    text: str


def groups(documents: Sequence[str]) -> list[tuple[str, ...]]:
    """Documents that share their rows: neighbours in the folder, in a group for each split."""
    size = max(1, min(GROUP, len(documents) // len(SPLITS)))
    return [tuple(documents[i : i + size]) for i in range(0, len(documents), size)]


def interleaved(lists: Iterable[Sequence[_T]]) -> list[_T]:
    """The first item of each list, then the second of each, and so on."""
    layers = zip_longest(*([(item,) for item in one] for one in lists))
    return [found[0] for layer in layers for found in layer if found]


def by_rules(documents: Mapping[str, str], count: int, seed: int) -> list[DraftedQuestion]:
    """Questions about all groups of the documents in turn; no two ask about the same name.

    Args:
        documents: text by name.
        count: most questions.
        seed: selects and orders them.
    """
    offers = interleaved(_offers(documents, group, seed) for group in groups([*documents]))
    found: list[DraftedQuestion] = []
    used: set[object] = set()
    for name, naming, question in offers:
        keys = {name.casefold(), question.quotes}
        if len(found) == count:
            break
        if used.isdisjoint(keys) and _complete(name, naming, documents, question.documents):
            used |= keys
            found.append(question)
    return found


def _complete(
    name: str, naming: list[Sentence], documents: Mapping[str, str], group: tuple[str, ...]
) -> bool:
    """Whether the name occurs in these sentences only: not in a table, nor in a heading."""
    pattern = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    inside = sum(len(pattern.findall(sentence.text)) for sentence in naming)
    return inside == sum(len(pattern.findall(documents[document])) for document in group)


_Offer = tuple[str, list[Sentence], DraftedQuestion]
"""A name, all sentences that contain it, and a question about it."""


def _offers(documents: Mapping[str, str], group: tuple[str, ...], seed: int) -> list[_Offer]:
    """Questions about the names of a group; the kinds of questions take turns."""
    kinds: dict[str, list[_Offer]] = {"several": [], "is": [], "numbers": []}
    for name, naming in names({document: documents[document] for document in group}).items():
        kind, text, gold = _question(name, naming)
        quotes = tuple((sentence.document, sentence.text) for sentence in gold)
        kinds.setdefault(kind, []).append((name, naming, DraftedQuestion(text, group, quotes)))
    chosen = random.Random(f"{seed} {group}")
    for offers in kinds.values():
        chosen.shuffle(offers)
    return interleaved(kinds.values())


def _question(name: str, naming: list[Sentence]) -> tuple[str, str, list[Sentence]]:
    """Kind, text and gold of a question about a name."""
    if len({sentence.document for sentence in naming}) > 1:
        text = f"What do the documents say about {name}? Quote each sentence that names it."
        return "several", text, naming
    pattern = re.compile(_DEFINES.format(re.escape(name)))
    if len(defining := [one for one in naming if pattern.match(one.text)]) == 1:
        return "is", f"What is {name}, according to the documents?", defining
    numbers = [one for one in naming if re.search(r"\d", one.text.replace(name, ""))]
    if numbers:
        text = f"Which numbers do the documents give in connection with {name}?"
        return "numbers", text, numbers
    return "named", f"What do the documents say about {name}?", naming


def names(documents: Mapping[str, str]) -> dict[str, list[Sentence]]:
    """Names in documents and all sentences that contain each; at most `MOST_GOLD`, sorted.

    A name is a run of capitalised words within a sentence, or a word with digits or underscores.
    A word that also occurs in small letters is not a name.
    """
    found = [
        Sentence(document, start, end, text[start:end])
        for document, text in documents.items()
        for start, end in sentences(text)
    ]
    words = [_words(sentence.text) for sentence in found]
    small = {word for line in words for _, word in line if word.islower()}
    known = {
        name
        for line in words
        for name in _names_of(line)
        if len(name) > 2 and name.lower() not in small
    }
    naming: dict[str, list[Sentence]] = {}
    for sentence, line in zip(found, words, strict=True):
        grams = {
            " ".join(word for _, word in line[first:last])
            for first in range(len(line))
            for last in range(first + 1, min(first + _NAME_WORDS, len(line)) + 1)
            if _adjacent(line[first:last])
        }
        for name in sorted(grams & known):
            naming.setdefault(name, []).append(sentence)
    return {name: found for name, found in sorted(naming.items()) if len(found) <= MOST_GOLD}


def _words(text: str) -> list[tuple[int, str]]:
    return [(match.start(), match[0]) for match in _WORD.finditer(text)]


def _adjacent(line: list[tuple[int, str]]) -> bool:
    """Whether single characters separate the words; in a good sentence these are spaces."""
    ends = [start + len(word) for start, word in line]
    return all(start - end == 1 for end, (start, _) in zip(ends, line[1:], strict=False))


def _names_of(line: list[tuple[int, str]]) -> Iterator[str]:
    """Names in the words of a sentence."""
    run: list[tuple[int, str]] = []
    for place, (start, word) in enumerate([*line, (-1, "")]):
        capital = word[:1].isupper() and not _COMMON.fullmatch(word.lower())
        coded = bool(re.search(r"\d|_", word)) and bool(re.search(r"[^\W\d_]{2}", word))
        if run and not (capital and _adjacent([run[-1], (start, word)])):
            if len(run) <= _NAME_WORDS:
                yield " ".join(one for _, one in run)
            run = []
        if capital and place > 0:  # each sentence begins with a capital
            run.append((start, word))
        elif coded:
            yield word


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """[start, end) of each sentence that can be a quote: prose, not headings, tables or code."""
    for first, last in _paragraphs(text):
        begin = first
        for stop in _STOP.finditer(text, first, last):
            end = stop.end()
            rest = text[end : end + 3].strip()[:1]
            word = text[begin : stop.start()].rpartition(" ")[2].lstrip("(").lower()
            if rest.islower() or (stop[0][0] == "." and _SHORT.fullmatch(word)):
                continue
            begin += len(text[begin:end]) - len(text[begin:end].lstrip())
            if _fit(text[begin:end]):
                yield begin, end
            begin = end


def _paragraphs(text: str) -> Iterator[tuple[int, int]]:
    """[start, end) of paragraphs and list items."""
    first: int | None = None
    place, fenced = 0, False
    for line in [*text.splitlines(keepends=True), ""]:
        bare = line.strip()
        fence = bare.startswith(("```", "~~~"))
        prose = bool(bare) and not (fenced or fence or bare[0] in "#|=>`")
        item = _ITEM.match(line)
        if first is not None and (not prose or item):
            yield first, place
            first = None
        if prose and first is None:
            first = place + (item.end() if item else 0)
        fenced ^= fence
        place += len(line)


def _fit(sentence: str) -> bool:
    letters = sum(map(str.isalpha, sentence)) / max(1, len(sentence))
    lines = sentence.count("\n") < _LINES and "\n\n" not in sentence
    starts = sentence[:1].isalnum() or sentence[:1] in "\"'("
    return len(sentence) in _CHARS and letters >= _LETTERS and lines and starts
