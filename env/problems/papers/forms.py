"""The grammar: forms of sentences, and the pen that writes them.

`text/placeholders.toml` describes the grammar. Reserved forms occur in the test split alone, so
that a policy cannot have learnt them by heart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

PLACEHOLDER = re.compile(r"\{(\w+)\}")
_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeioAEIO]|8|11)")


@dataclass(frozen=True)
class Forms:
    """Ways to say one thing."""

    common: tuple[str, ...]
    reserved: tuple[str, ...] = ()
    """For the test split only."""


def forms(items: object) -> Forms:
    """Forms from a list of texts; those that begin with `~` are reserved.

    Raises:
        ValueError: it is not a list of texts, a bracket is left open, or all are reserved.
    """
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ValueError(f"not a list of texts: {items!r}")
    texts = [" ".join(item.split()) for item in items]
    for text in texts:
        if re.search(r"[\[\]{}]", PLACEHOLDER.sub("", _CHOICE.sub(r"\1", text))):
            raise ValueError(f"unpaired or nested bracket in {text!r}")
    common = tuple(text for text in texts if not text.startswith("~"))
    if not common:
        raise ValueError(f"no common form in {texts}: leave one without ~")
    return Forms(common, tuple(text[1:] for text in texts if text.startswith("~")))


def _between(low: int, high: int) -> Callable[[Random], str]:
    return lambda rng: str(rng.randint(low, high))


def _word(words: str) -> Callable[[Random], str]:
    choices = words.split()
    return lambda rng: rng.choice(choices)


DRAWN: Mapping[str, Callable[[Random], str]] = {
    "few": _word("two three four five six"),
    "more": _word("seven eight nine ten twelve fifteen"),
    "percent": _between(3, 48),
    "most": _between(81, 97),
    "tens": _between(12, 95),
    "hundreds": _between(110, 980),
    "thousands": lambda rng: f"{rng.randint(2, 98)},{rng.randint(0, 999):03d}",
    "points": lambda rng: f"{rng.randint(3, 11)}.{rng.randint(1, 9)}",
    "tenths": lambda rng: f"0.{rng.randint(11, 89)}",
    "low": lambda rng: f"0.{rng.randint(21, 44)}",
    "high": lambda rng: f"0.{rng.randint(78, 92)}",
}
"""Slots that need no subject: a number or a number word."""


class _Slots(dict[str, str]):
    """Slots given, else drawn."""

    def __init__(self, given: Mapping[str, str], rng: Random) -> None:
        super().__init__(given)
        self._rng = rng

    def __missing__(self, key: str) -> str:
        return DRAWN[key](self._rng)


class Pen:
    """Writes the sentences of one collection; says nothing twice that was to be said once.

    Args:
        rng: of the collection.
        reserved: share of draws that prefer a reserved form; 0 outside the test split.
    """

    def __init__(self, rng: Random, reserved: float) -> None:
        self.rng = rng
        self._reserved = reserved
        self._said: set[str] = set()

    def order(self, ways: Forms) -> list[str]:
        """All forms that may be used, shuffled."""
        items = list(ways.common + (ways.reserved if self._reserved else ()))
        self.rng.shuffle(items)
        return items

    def fill(self, form: str, **slots: str) -> str:
        """A form with its choices made and its slots filled."""
        rng = self.rng
        text = _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), form)
        return _ARTICLE.sub(r"\1n ", text.format_map(_Slots(slots, rng)))

    def phrase(self, ways: Forms, **slots: str) -> str:
        """One of the forms, as a part of a sentence."""
        held = bool(ways.reserved) and self.rng.random() < self._reserved
        return self.fill(self.rng.choice(ways.reserved if held else ways.common), **slots)

    def write(self, ways: Forms, **slots: str) -> str:
        """One of the forms, as a sentence."""
        return sentence(self.phrase(ways, **slots))

    def numbers(self) -> dict[str, str]:
        """Every slot that is drawn, for statements that have to agree in their numbers."""
        return {name: draw(self.rng) for name, draw in DRAWN.items()}

    def once(self, ways: Forms, **slots: str) -> str | None:
        """One of the forms, as a sentence that `once` has not given before; None: used up."""
        for _ in range(60):
            text = self.write(ways, **slots)
            if text not in self._said:
                self._said.add(text)
                return text
        return None


def sentence(text: str) -> str:
    """The text with a capital letter at its start."""
    return text[0].upper() + text[1:]
