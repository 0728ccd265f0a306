"""Passages of documents: their order for a question (the REPL's `rank`), and those around hits.

Pure, because the zygote of the sandbox imports this module, and policies outside of it do as well.
The scores are Okapi's BM25 with its usual constants. Every passage is a verbatim slice of its
document, so quoting one retrieves its characters.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from functools import lru_cache
from heapq import nsmallest
from math import log
from typing import Any, NamedTuple

from env.passages import PART, cut, parts, passages
from env.words import COMMON, stem, words

Order = Callable[[str, list[str]], Sequence[int]]
"""Indices of texts, which are in the order of their documents; those first that fit best."""

MOST = 24
"""Passages that `rank` returns unless it's told otherwise."""
MOST_ORDERED = 2048
"""Passages that an `order` gets at most: of more, those that BM25 puts first."""
PASSAGE_CHARS = 1000
"""Characters up to which a paragraph is one passage."""
LEAST_CHARS = 12
"""Shorter pieces, such as headings, are joined to a neighbour."""

_Asked = Mapping[str, Set[str]]
"""Words of a question by their stem."""

_K1, _B = 1.5, 0.75

_KEPT = 64
"""Parts whose index is kept: in English, each takes some four times its characters."""
_ALIKE = 0.4
"""What another form of a word counts, where the word itself counts 1."""
_COMPOUND = 5
"""Letters at least of a word that is the beginning or end of a longer one."""


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
    with an `order` of all passages. The words of the last two million characters or so are kept, so
    that a second question about them costs a tenth.

    Another form of a word counts less than the word. Where the documents have a long word in no
    form, words count that begin or end with it, or it with them, as in German. The words of a row's
    header count for the row.

    Args:
        documents: {id: text}; a text or a list of texts has the id "".
        text: a question, or some words.
        most: passages at most.
        chars: a longer paragraph counts by its sentences, a longer table by its rows.
        least: characters of a passage at least, if a neighbour is near.
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
    without = COMMON if words(text) else frozenset[str]()  # such as "Who are we?"
    asked: dict[str, set[str]] = defaultdict(set)
    for word in words(text, without):
        asked[stem(word)].add(word)
    return _best(documents, asked, max(0, int(most)), (chars, least, without))


def _best(
    documents: Any,
    asked: _Asked,
    most: int,
    cutting: tuple[int, int, Set[str]],
    lone: Sequence[str] = (),
) -> list[tuple[Any, str]]:
    """The first passages by BM25.

    Args:
        documents: as of `rank`.
        asked: words of the question.
        most: passages at most.
        cutting: arguments of `_index`.
        lone: words of which compounds count, too.
    """
    holding: Counter[str] = Counter()
    matches: dict[tuple[Any, str], tuple[int, dict[str, float]]] = {}
    total = number = 0
    for document, whole in _texts(documents).items():
        for part in parts(whole):
            index = (_index if len(part) <= 4 * PART else _index.__wrapped__)(part, *cutting)
            total, number = total + sum(index.lengths), number + len(index.lengths)
            for place, counts in sorted(index.found(asked, lone).items()):
                entry = document, index.passages[place]
                if entry not in matches:
                    matches[entry] = index.lengths[place], counts
                    holding.update(counts.keys())
    # In English, compounds mislead more often than they help: only if nothing else is found.
    rest = [word for known, own in asked.items() if known not in holding for word in own]
    rest = sorted(word for word in rest if len(word) >= _COMPOUND and word.isalpha())
    if rest and not lone:
        return _best(documents, asked, most, cutting, rest)
    weight = {w: log(1 + (number - n + 0.5) / (n + 0.5)) for w, n in holding.items()}

    def loss(entry: tuple[Any, str]) -> float:
        length, counts = matches[entry]
        room = _K1 * (1 - _B + _B * length * number / total)
        return -sum(weight[w] * n * (_K1 + 1) / (n + room) for w, n in sorted(counts.items()))

    return nsmallest(most, matches, key=loss)


class _Index(NamedTuple):
    """The passages of a part of a document, and where their words are."""

    passages: list[str]
    lengths: list[int]
    """Words of each passage."""
    places: dict[str, list[int]]
    """Passages that hold a word, each as often as it does."""

    def found(self, asked: _Asked, lone: Sequence[str]) -> dict[int, dict[str, float]]:
        """What each word, by its stem, counts in the passages that hold it."""
        counts: dict[int, dict[str, float]] = {}

        def count(known: str, held: str, share: float) -> None:
            for place in self.places[held]:
                own = counts.setdefault(place, {})
                own[known] = own.get(known, 0.0) + share

        initials = {known[0] for known in asked}  # stemming is slow, and keeps the first letter
        for held in self.places:
            if held[0] in initials and (known := stem(held)) in asked:
                count(known, held, 1.0 if held in asked[known] else _ALIKE)
        for word in lone:
            sizes = range(_COMPOUND, len(word))
            inside = {word[:size] for size in sizes} | {word[-size:] for size in sizes}
            for held in self.places:
                if held in inside or held.startswith(word) or held.endswith(word):
                    count(stem(word), held, _ALIKE)
        return counts


@lru_cache(_KEPT)
def _index(part: str, chars: int, least: int, without: Set[str]) -> _Index:
    found, lengths, places = list[str](), list[int](), defaultdict[str, list[int]](list)
    for place, (start, end, header, _) in enumerate(cut(part, chars, least)):
        found.append(part[start:end])
        bag = words(found[-1], without)
        if header:
            bag += words(part[header], without)
        lengths.append(len(bag))
        for word in bag:
            places[word].append(place)
    return _Index(found, lengths, places)


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


def occurrences(text: str, keyword: str) -> list[tuple[int, int]]:
    """[start, end) of each occurrence of a keyword."""
    return [hit.span() for hit in re.finditer(re.escape(keyword), text)]


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
