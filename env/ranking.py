"""Passages of documents: their order for a question (the REPL's `rank`), and those around hits.

Pure, and of the standard library alone, because the zygote of the sandbox imports this module, and
policies outside of it do as well. The scores are Okapi's BM25 with its usual constants. Every
passage is a verbatim slice of its document, so quoting one retrieves its characters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import nsmallest
from math import log
from typing import Any

Order = Callable[[str, list[str]], Sequence[int]]
"""Indices of texts, which are in the order of their documents; those first that fit best."""

MOST = 24
"""Passages that `rank` returns unless it's told otherwise."""
MOST_ORDERED = 2048
"""Passages that an `order` gets at most: of more, those that BM25 puts first."""
PASSAGE_CHARS = 1000
"""Characters up to which a paragraph is one passage."""
LEAST_CHARS = 12
"""Shorter pieces, such as headings, are no passages."""

_WRAPPED = 120
"""Longest line of a paragraph that was wrapped; with a longer one, each line is a paragraph."""
_LONGEST = 2000
"""Characters of a passage at most: text without any sentence is cut."""
_K1, _B = 1.5, 0.75

_COMMON = frozenset(
    word
    for line in (
        "a an and are as at be by can could did do does for from had has have how i if in is it",
        "its me my not of on or should so that the their them there these they this to was we",
        "were what when where which while who why will with would you your",
    )
    for word in line.split()
)
"""Words that say nothing about the subject of a question."""
_ENDINGS = ("ing", "ed", "es", "s", "ly")

_BLANK = re.compile(r"\n\s*\n")
_SENTENCE = re.compile(r"(?<=[.?!])\s+(?![a-z])")
_WORD = re.compile(r"[^\W_]+")


def rank(
    documents: Any,
    text: str,
    most: int = MOST,
    *,
    chars: int = PASSAGE_CHARS,
    least: int = LEAST_CHARS,
    order: Order | None = None,
    ordered: int = MOST_ORDERED,
) -> list[tuple[Any, str]]:
    """The passages that share the rarest words with a text, best first.

    The work grows with the characters of the documents, the memory with the matching passages, or
    with an `order` of all passages.

    Args:
        documents: {id: text}; a text or a list of texts has the id "".
        text: a question, or some words.
        most: passages at most.
        chars: a longer paragraph counts by its sentences.
        least: characters of a passage at least.
        order: another order, such as that of `env.embedding`.
        ordered: passages that it gets at most, the first by their words.

    Returns:
        (id, passage) of passages with a word of the text, or with an `order` of all passages.
        Equal scores keep their order.

    Raises:
        ValueError: the text is empty.
        TypeError: the documents are none.
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError("rank: text must be a text that is not empty")
    if order is not None:
        cut = ((key, p) for key, t in _texts(documents).items() for p in passages(t, chars, least))
        candidates = list(dict.fromkeys(cut))
        if len(candidates) > ordered:
            best = {*rank(documents, text, ordered, chars=chars, least=least)}
            candidates = [one for one in candidates if one in best]
        places = order(text, [passage for _, passage in candidates]) if candidates else []
        return [candidates[place] for place in places[: max(0, int(most))]]
    asked = set(words(text))
    holding: Counter[str] = Counter()
    matches: dict[tuple[Any, str], tuple[int, list[tuple[str, int]]]] = {}
    total = number = 0
    for document, whole in _texts(documents).items():
        for passage in passages(whole, chars, least):
            bag = words(passage)
            total, number = total + len(bag), number + 1
            if (document, passage) in matches or asked.isdisjoint(bag):
                continue
            counts = [(word, bag.count(word)) for word in asked.intersection(bag)]
            holding.update(word for word, _ in counts)
            matches[document, passage] = len(bag), counts
    weight = {w: log(1 + (number - n + 0.5) / (n + 0.5)) for w, n in holding.items()}

    def loss(entry: tuple[Any, str]) -> float:
        length, counts = matches[entry]
        room = _K1 * (1 - _B + _B * length * number / total)
        return -sum(weight[word] * n * (_K1 + 1) / (n + room) for word, n in sorted(counts))

    return nsmallest(max(0, int(most)), matches, key=loss)


def near(documents: Any, found: Sequence[tuple[Any, str]], chars: int) -> list[tuple[Any, str]]:
    """The first passage and those around it, in the order of `found`: no gap is wider than `chars`.

    An answer is seldom scattered: of the passages that rank first, those around the best one are
    it more often than those of other pages that rank as high.

    Args:
        documents: as of `rank`.
        found: (id, passage), best first.
        chars: characters at most between one passage and the next.

    Raises:
        ValueError: the first passage is not in its document word for word.
        TypeError: the documents are none.
    """
    document, best = found[0] if found else ("", "")
    text = _texts(documents, "near").get(document, "")
    if best not in text:
        raise ValueError("near: the first passage is not in its document word for word")
    own = {passage: text.find(passage) for key, passage in found if key == document}
    places = sorted((at, passage) for passage, at in own.items() if at >= 0)
    together, end = set[str](), 0
    for start, passage in places:
        if start > end + chars:
            if best in together:
                break
            together.clear()
        together.add(passage)
        end = max(end, start + len(passage))
    return [one for one in found if one[0] == document and one[1] in together]


def words(text: str) -> list[str]:
    """Words in lower case, without common ones and without the endings of English."""
    return [_stem(word) for word in _WORD.findall(text.lower()) if word not in _COMMON]


@lru_cache(1 << 14)
def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) >= len(ending) + 3:
            return word.removesuffix(ending)
    return word


def passages(text: str, chars: int = PASSAGE_CHARS, least: int = LEAST_CHARS) -> Iterator[str]:
    """Paragraphs of a text, the sentences of long ones, and the rows of tables."""
    for block in _split(_BLANK, text):
        lines = block.split("\n")
        apart = any(len(line) > _WRAPPED or line.startswith("|") for line in lines)
        for paragraph in lines if apart else [block]:
            pieces = [paragraph] if len(paragraph) <= chars else _split(_SENTENCE, paragraph)
            for piece in map(str.strip, pieces):
                for start in range(0, len(piece), _LONGEST):
                    if len(piece) - start >= least:
                        yield piece[start : start + _LONGEST]


def _split(end: re.Pattern[str], text: str) -> Iterator[str]:
    """Parts of a text, one by one: a list of them could take ten times its memory."""
    start = 0
    for match in end.finditer(text):
        yield text[start : match.start()]
        start = match.end()
    yield text[start:]


def occurrences(text: str, keyword: str) -> list[tuple[int, int]]:
    """[start, end) of each occurrence of a keyword."""
    hits = []
    start = text.find(keyword)
    while start >= 0:
        hits.append((start, start + len(keyword)))
        start = text.find(keyword, start + len(keyword))
    return hits


def snippets(text: str, hits: list[tuple[int, int]], before: int, after: int) -> list[str]:
    """Hits widened by a window and then to whole sentences; overlapping ones are joined."""
    spans: list[tuple[int, int]] = []
    for hit_start, hit_end in hits:
        start = _sentence_start(text, max(0, hit_start - before))
        end = _sentence_end(text, min(len(text), hit_end + after))
        if spans and start < spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return list(dict.fromkeys(text[start:end].strip() for start, end in spans))


def _sentence_start(text: str, position: int) -> int:
    line = text.rfind("\n", 0, position) + 1
    stop = text.rfind(". ", 0, position)
    return max(line, stop + 2 if stop >= 0 else 0)


def _sentence_end(text: str, position: int) -> int:
    line = text.find("\n", position)
    # A hit that includes the sentence's full stop ends inside that sentence.
    stop = text.find(". ", max(0, position - 1))
    ends = [line if line >= 0 else len(text), stop + 1 if stop >= 0 else len(text)]
    return max(position, min(ends))


def _texts(documents: Any, caller: str = "rank") -> dict[Any, str]:
    if isinstance(documents, (list, tuple)) and all(isinstance(part, str) for part in documents):
        documents = "\n\n".join(documents)
    if isinstance(documents, str):
        return {"": documents}
    if not isinstance(documents, Mapping):
        raise TypeError(f"{caller}: give it a text or a dict, not {type(documents).__name__}")
    return {key: whole for key, whole in documents.items() if isinstance(whole, str)}
