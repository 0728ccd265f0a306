"""The functions that read `context`, as the policy calls them. Pure: they send no message.

`context` is one text or {paper_id: text}. Snippets are verbatim slices of a text, so every
snippet in an answer occurs in a paper.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from env import ranking

_CLOSE = 0.85
"""Least similarity of a misspelling: 6-letter names that differ in one letter are below it."""


class Reader:
    """`search`, `rank`, `list_papers`, `extract` with this REPL's settings.

    Args:
        window: Characters kept on each side of a hit before widening to whole sentences.
        chars: Characters of a paragraph from which `rank` takes its sentences.
        least: Characters of a passage at least.
        order: Orders the passages of `rank`; None for BM25.
    """

    def __init__(
        self,
        window: int,
        chars: int = ranking.PASSAGE_CHARS,
        least: int = ranking.LEAST_CHARS,
        order: ranking.Order | None = None,
    ) -> None:
        self._window = window
        self._chars = chars
        self._least = least
        self._order = order

    def search(
        self, text: Any, keyword: str, window: int | None = None, bidirectional: bool = True
    ) -> Any:
        """Sentences of `text` with `keyword`: exact, else in any case, else misspelt.

        Returns:
            A list of snippets for a text; {paper_id: snippets} of the papers with hits for a dict.
        """
        if not isinstance(keyword, str) or not keyword.strip():
            raise ValueError("search: keyword must be a text that is not empty")
        if isinstance(text, (list, tuple)) and all(isinstance(part, str) for part in text):
            text = "\n".join(text)
        if not isinstance(text, (str, Mapping)):
            raise TypeError(f"search: give it a text or a dict, not {type(text).__name__}")
        width = self._window if window is None else max(0, int(window))
        before = width if bidirectional else 0
        papers = text if isinstance(text, Mapping) else {"": text}
        snippets: dict[Any, list[str]] = {}
        for paper_id, hits in _hits(papers, keyword).items():
            snippets[paper_id] = ranking.snippets(papers[paper_id], hits, before, width)
        return snippets if isinstance(text, Mapping) else snippets.get("", [])

    def rank(self, documents: Any, text: str, most: int = ranking.MOST) -> list[tuple[str, str]]:
        """The passages of `documents` that fit `text` best: (paper_id, passage), best first."""
        sizes = {"chars": self._chars, "least": self._least}
        return ranking.rank(documents, text, most, **sizes, order=self._order)

    def list_papers(self, context: Any) -> list[str]:
        """The ids of the papers."""
        if isinstance(context, Mapping):
            return list(context)
        raise TypeError("list_papers: context is one text here, not a dict of papers")

    def extract(self, snippet: str, start_phrase: str, end_phrase: str) -> str:
        """The part of `snippet` from one phrase to the end of another, in any case.

        A missing start phrase means the beginning, a missing end phrase the end.
        """
        folded = _fold(snippet)
        start = max(0, folded.find(_fold(start_phrase)))
        end = folded.find(_fold(end_phrase), start)
        return snippet[start:] if end < 0 else snippet[start : end + len(end_phrase)]


def _fold(text: str) -> str:
    """Lower case, character by character: positions in the result are positions in `text`."""
    lower = text.lower()
    if len(lower) == len(text):
        return lower
    return "".join(char if len(char.lower()) != 1 else char.lower() for char in text)


def _hits(papers: Mapping[Any, Any], keyword: str) -> dict[Any, list[tuple[int, int]]]:
    """Places of `keyword` by paper, at the strictest level that finds any."""
    texts = {paper_id: text for paper_id, text in papers.items() if isinstance(text, str)}
    exact = {paper_id: ranking.occurrences(text, keyword) for paper_id, text in texts.items()}
    if any(exact.values()):
        return {paper_id: places for paper_id, places in exact.items() if places}
    folded = _fold(keyword)
    loose = {paper_id: ranking.occurrences(_fold(text), folded) for paper_id, text in texts.items()}
    if not any(loose.values()):
        loose = {paper_id: _close_places(text, folded) for paper_id, text in texts.items()}
    return {paper_id: places for paper_id, places in loose.items() if places}


def _close_places(text: str, keyword: str) -> list[tuple[int, int]]:
    """Runs of words that are each close to the keyword's word at that position."""
    wanted = re.findall(r"\w+", keyword)
    words = [(match.group().lower(), match.span()) for match in re.finditer(r"\w+", text)]
    vocabulary = sorted({word for word, _ in words})
    close = [set(difflib.get_close_matches(word, vocabulary, 20, _CLOSE)) for word in wanted]
    if not close or not all(close):
        return []
    return [
        (words[i][1][0], words[i + len(close) - 1][1][1])
        for i in range(len(words) - len(close) + 1)
        if all(words[i + j][0] in close[j] for j in range(len(close)))
    ]
