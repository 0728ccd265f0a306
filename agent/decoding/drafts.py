"""Guesses of the tokens that a row writes next, from what was read and written before.

Agents repeat themselves and each other: they quote what they have read, and the roots of a group
write nearly the same code. A guess costs nothing but time if it's wrong, because `sampling.py`
checks each token of it and keeps what it would have sampled anyway.

A guess continues the newest place with the same last tokens, in the row's own conversation or in
the turns that others completed. How often such guesses came true, by the number of tokens that
agreed before, decides how long a guess may be. Nothing depends on a clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

_ORDERS = (8, 3)
"""Numbers of last tokens that a place must share, in the order of the search."""
_LONGEST = 16
"""Most tokens of a guess."""
_KEPT = 65_536
"""Tokens of completed turns after which the older half is forgotten."""
_DECAY = 0.98
"""Weight of earlier guesses when a new one is counted."""

_Place = tuple[Sequence[int], int]
"""A text, and the index of the token that continues it."""
_Index = dict[tuple[int, ...], _Place]


def _add(index: _Index, text: Sequence[int], start: int, end: int) -> None:
    """Index the tokens of a text after its first `start` ones and before `end`, by those before."""
    for order in _ORDERS:
        first = max(0, start - order)
        grams = zip(*(text[first + shift : end - 1] for shift in range(order)), strict=False)
        index.update((gram, (text, place)) for place, gram in enumerate(grams, first + order))


@dataclass
class _Hits:
    """Decayed numbers of guessed tokens that came true, and of guesses that ended in a wrong one.

    The first numbers say that two of three tokens come true, which the first guesses test.
    """

    right: float = 4.0
    wrong: float = 2.0

    def rate(self) -> float:
        return self.right / (self.right + self.wrong)

    def count(self, right: int, *, failed: bool) -> None:
        self.right = self.right * _DECAY + right
        self.wrong = self.wrong * _DECAY + failed


class DraftStore:
    """Completed turns of all frames, bounded, and how often guesses came true."""

    def __init__(self) -> None:
        self._new: _Index = {}
        self._old: _Index = {}
        self._tokens = 0
        self._hits = [_Hits() for _ in range(8)]

    def add(self, text: Sequence[int], start: int) -> None:
        """Remember a completed turn.

        Args:
            text: a conversation that ends with the turn, and doesn't change any more.
            start: index of the turn's first token.
        """
        text = text[max(0, start - _ORDERS[0]) :]
        if self._tokens > _KEPT // 2:
            self._old, self._new, self._tokens = self._new, {}, 0
        self._tokens += len(text)
        _add(self._new, text, 0, len(text))

    def find(self, gram: tuple[int, ...]) -> _Place | None:
        """The newest place after some tokens."""
        return self._new.get(gram) or self._old.get(gram)

    def hits(self, agreed: int) -> _Hits:
        """Counts of the guesses with so many agreeing tokens before them."""
        return self._hits[min(agreed.bit_length(), len(self._hits) - 1)]


@dataclass
class Drafter:
    """Guesses of one row."""

    drafts: DraftStore
    text: list[int]
    """The row's conversation, to which the caller adds what the row samples."""
    _own: _Index = field(default_factory=dict)
    _indexed: int = 0
    """Tokens of the text that are in `_own`."""
    _place: _Place | None = None
    """Where the last guess goes on, if all of it came true."""
    _agreed: int = 0
    """Tokens before that place that agree."""
    _guess: Sequence[int] = ()

    def guess(self, worth: float, most: int) -> Sequence[int]:
        """Tokens that the row may sample next.

        Args:
            worth: probability above which a guessed token pays.
            most: most tokens.
        """
        self._guess = ()
        if most < 1:
            return ()
        if self._place is None or self._place[1] >= len(self._place[0]):
            self._place = self._search()
        if self._place is None:
            return ()
        rate = self.drafts.hits(self._agreed).rate()
        length = min(most, _LONGEST, int(math.log(worth) / math.log(rate)))
        text, start = self._place
        self._guess = text[start : start + length]
        return self._guess

    def sampled(self, tokens: Sequence[int]) -> None:
        """Say what the row has sampled since the guess; the text has it."""
        right = 0
        for token, guessed in zip(tokens, self._guess, strict=False):
            if token != guessed:
                break
            right += 1
        if self._guess:
            failed = right < min(len(self._guess), len(tokens))
            self.drafts.hits(self._agreed).count(right, failed=failed)
        if self._place is None:
            return
        text, start = self._place
        if list(text[start : start + len(tokens)]) == list(tokens):
            self._place, self._agreed = (text, start + len(tokens)), self._agreed + len(tokens)
        else:
            self._place = None

    def _search(self) -> _Place | None:
        """A place that shares the row's last tokens."""
        _add(self._own, self.text, self._indexed, len(self.text))
        self._indexed = len(self.text)
        for order in _ORDERS:
            gram = tuple(self.text[-order:])
            if place := self._own.get(gram) or self.drafts.find(gram):
                self._agreed = order
                return place
        return None
