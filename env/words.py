"""Words of a text as `env.ranking` compares them: one spelling, no endings, no spaces needed.

Unicode has several spellings of one letter, so texts are normalised and folded. Endings are those
of English. Scripts without spaces give pairs of characters, as search engines have long done.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from itertools import pairwise
from unicodedata import normalize

from Stemmer import Stemmer

_LINES = (
    "a an and are as at be by can could did do does for from had has have how i if in is it its me "
    "my not of on or should so that the their them there these they this to was we were what when "
    "where which while who why will with would you your"
)
COMMON = frozenset(_LINES.split())
"""Words that say nothing about the subject of a question."""

_MARKED = "\u0300-\u036f\u0591-\u05bd\u064b-\u065f\u0900-\u0963\u0966-\u0dff"
"""Accents, points, and scripts of India: their marks are no letters to `re`, but part of a word."""
_MARKED_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
"""Thai, Lao, Burmese and Khmer."""
_UNSPACED = (
    f"{_MARKED_UNSPACED}\u3005-\u3007\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
"""These, kana, Han, and Hangul, whose words carry particles."""
_RUN = re.compile(f"[{_UNSPACED}]+")
_WORD = re.compile(rf"[\w{_MARKED}{_MARKED_UNSPACED}]+")

_PLURALS = (  # codespell:ignore-next-line
    (re.compile(r"(cal|dwar|hal|hoo|loa|scar|sel|shea|shel|thie|whar|wol|^el|^lea)ves$"), r"\1f"),
    (re.compile(r"(kni|^li|^wi|dwi|sewi)ves$"), r"\1fe"),
    (re.compile(r"(?<=[aeioy])sis$"), "ses"),
)
"""Plurals that the stemmer parts from their singular: wolves, knives, and analysis."""


def words(text: str, without: Collection[str] = COMMON) -> list[str]:
    """Words and pairs of characters in one spelling, in the order of a text."""
    if not text.isascii():
        text = _RUN.sub(_pairs, normalize("NFKC", text))
    found = _WORD.findall(text.casefold().replace("_", " "))
    return [word for word in found if word not in without]


def _pairs(run: re.Match[str]) -> str:
    return f" {' '.join(map(''.join, pairwise(run[0]))) or run[0]} "


@lru_cache(1 << 14)
def stem(word: str) -> str:
    """What a word of English has in common with its other forms: price and prices, policies."""
    if word.endswith(("ves", "sis")):
        for ending, instead in _PLURALS:
            word = ending.sub(instead, word)
    # One stemmer for each new word, because threads can't share one.
    return Stemmer("english", 0).stemWord(word)
