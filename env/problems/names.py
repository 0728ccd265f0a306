"""The invented names of the synthetic world: two three-letter syllables, "Kalvot".

The inventory is fixed, so that a tokenizer built for it fits every data set. Two syllables of
one position differ in at least two letters, so that no name is a misspelling of another one
within a letter, and no syllable is a word that code uses. A fifth of the names is reserved:
the test split can be made of names that no training problem holds, while every syllable still
occurs in training.
"""

from __future__ import annotations

from random import Random

_FIRST = (
    "bef dab det dor fil fod gex hep hix jak jed jir kar kes kot lan los luf mid mok "
    "niz pat pez pob pud ral rup sam sev sik sol ter tig tox vap vel vis vuk zop zux"
)
FIRST = tuple(_FIRST.split())
"""First syllables; written with a capital in a name."""

_SECOND = (
    "box daf dib faz fel geb gip gov jag jos jum kat ked kig koz kuf lep lim mas mub "
    "nem nop nux pef pug rak riv rog seg sur tev tod vek vin vob vul zam zex zor zuk"
)
SECOND = tuple(_SECOND.split())
"""Second syllables; none of them is a first one."""

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
"""320 names that only the test split may hold."""

NAMES = COMMON + RESERVED
"""All 1,600 names."""


def choose(rng: Random, count: int, reserved: float) -> list[str]:
    """Distinct names, of which a share `reserved` is; every draw shuffled."""
    held = round(reserved * count)
    chosen = rng.sample(RESERVED, held) + rng.sample(COMMON, count - held)
    rng.shuffle(chosen)
    return chosen
