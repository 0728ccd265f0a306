"""The sentences that an episode showed, in worlds where only a reader can choose among them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

TOKENS_OF_CODE = 92
"""Tokens of the expert's two turns, and of what the first one prints."""
TOKENS_OF_CANDIDATE = 10.4
"""Tokens of a candidate's reader, with the prompt and the reply, if it reads four at a call."""


def expert_tokens(candidates: int) -> float:
    """Tokens of the expert on a problem with so many candidates."""
    return TOKENS_OF_CODE + TOKENS_OF_CANDIDATE * candidates


@dataclass(frozen=True)
class ReaderFacts:
    """Facts of an episode whose problem has candidates."""

    gold_shown: float
    """Share of the sentences with evidence that a frame was shown."""
    others_shown: float
    """Share of all other sentences but the candidates that a frame was shown."""
    candidates: int
    """Sentences among which only a reader can choose."""
    tokens: int
    """Tokens of all frames beyond the root's first messages."""

    @property
    def par(self) -> float:
        """Tokens of the expert, by which `tokens` are free."""
        return expert_tokens(self.candidates)


def lines_shown(lines: Collection[str], texts: Iterable[str]) -> set[str]:
    """The lines that occur in a text.

    The policy writes the texts, and no clock limits this function. So its work grows with their
    characters and with the number of different lengths of lines, not with the number of lines.
    """
    shown: set[str] = set()
    line_set = set(lines) - {""}
    if not line_set:
        return shown
    head = min(map(len, line_set))
    lengths: dict[str, set[int]] = {}
    for line in line_set:
        lengths.setdefault(line[:head], set()).add(len(line))
    for text in dict.fromkeys(texts):
        starts = range(len(text) - head + 1)
        for at in [at for at in starts if text[at : at + head] in lengths]:
            parts = (text[at : at + length] for length in lengths[text[at : at + head]])
            shown.update(part for part in parts if part in line_set)
    return shown


def share(part: Collection[str], shown: Collection[str]) -> float:
    """Share of a part's lines that were shown; 0 if it has none."""
    return len(set(part).intersection(shown)) / len(set(part)) if part else 0.0
