"""Invented names of the synthetic problems: two three-letter syllables, such as "Kalvot".

The inventory is fixed, so that a tokenizer built for it fits every data set. Two syllables of one
position differ in at least two letters, so that no typo turns a name into another one. Syllables
are never words that code uses. A fifth of the names is reserved, so that the test split can
consist of names that occur in no training problem. Every syllable occurs in training.
"""

from __future__ import annotations

_FIRST = (
    "bef dab det dor fil fod gex hep hix jak jed jir kar kes kot lan los luf mid mok "
    "niz pat pez pob pud ral rup sam sev sik sol ter tig tox vap vel vis vuk zop zux"
)
FIRST = tuple(_FIRST.split())
"""First syllables, capitalised in a name."""

_SECOND = (
    "box daf dib faz fel geb gip gov jag jos jum kat ked kig koz kuf lep lim mas mub "
    "nem nop nux pef pug rak riv rog seg sur tev tod vek vin vob vul zam zex zor zuk"
)
SECOND = tuple(_SECOND.split())
"""Second syllables, all different from the first ones."""

_RESERVED_EVERY = 5


def _names(reserved: bool) -> tuple[str, ...]:
    return tuple(
        first.capitalize() + second
        for i, first in enumerate(FIRST)
        for j, second in enumerate(SECOND)
        if ((i + j) % _RESERVED_EVERY == 0) == reserved
    )


COMMON = _names(reserved=False)
"""1,280 names for every split."""

RESERVED = _names(reserved=True)
"""320 names for the test split only."""

NAMES = COMMON + RESERVED
"""All 1,600 names."""

TITLE = "A study of {z}."
FACTS = (
    "{x} scores {n} on {y}.",
    "{x} reaches {n} on {y}.",
    "On {y}, {x} gets {n}.",
    "{x} gets {n} points on {y}.",
    "On {y}, {x} comes to {n}.",
    "A score of {n} is what {x} has on {y}.",
)
"""The score is at neither end of a long sentence: the rest alone would be nearly all of it."""
SCORES = range(10, 100)
