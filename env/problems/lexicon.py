"""Benchmarks of the world `fields`, and the field of each: knowledge that no document states.

A name is two three-letter syllables around an "a", such as "Toxalim". So no benchmark is a method,
two names differ in at least two letters, and a syllable says nothing about the field. The order is
fixed: a larger lexicon holds all names of a smaller one.
"""

from __future__ import annotations

from random import Random

from env.problems.names import FIRST, SECOND

FIELDS = ("audio", "code", "maths", "music", "speech", "text", "video", "vision")
MOST = len(FIRST) * len(SECOND)
"""Largest lexicon."""

_UNTAUGHT, _UNTRAINED = (9, 18), (18,)
"""Of twenty names, those that the warm start never shows, and those of no training problem."""


def lexicon(size: int) -> dict[str, str]:
    """Field of each benchmark; each field has the same number of names.

    Args:
        size: number of names, a multiple of 8, at most `MOST`.
    """
    rng = Random("lexicon")
    fields: list[str] = []
    while len(fields) < size:
        fields += rng.sample(FIELDS, len(FIELDS))
    return {_name(number): field for number, field in enumerate(fields[:size])}


def untaught(size: int) -> frozenset[str]:
    """Names of `lexicon(size)` that the warm start never shows; a tenth of them."""
    return frozenset(_name(number) for number in range(size) if number % 20 in _UNTAUGHT)


def untrained(size: int) -> frozenset[str]:
    """Names of `untaught(size)` that no training problem holds; half of them."""
    return frozenset(_name(number) for number in range(size) if number % 20 in _UNTRAINED)


def trained_names(size: int) -> dict[str, str]:
    """The part of `lexicon(size)` that training problems use."""
    hidden = untrained(size)
    return {name: field for name, field in lexicon(size).items() if name not in hidden}


def strangers(size: int) -> tuple[str, ...]:
    """Names of no field, which `lexicon(size)` does not hold: as many as are untaught, or fewer."""
    return tuple(_name(number) for number in range(size, min(size + len(untaught(size)), MOST)))


def _name(number: int) -> str:
    first = FIRST[number % len(FIRST)]
    return f"{first.capitalize()}a{SECOND[(number + number // len(FIRST)) % len(SECOND)]}"
