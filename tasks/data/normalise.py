"""Normalised text for comparisons, with a mapping back to the original.

Papers come from PDF and HTML converters, quotes from people and models. They differ in line
breaks, hyphens at line ends, ligatures, typographic quotes and dashes. `align.py` searches for
quotes in normalised text.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache

_LETTER = r"[^\W\d_]"
_INVISIBLE = "\u00ad\u200b-\u200d\u2060\ufeff"
_DOUBLE = "\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb"
_SINGLE = "\u2018\u2019\u201a\u201b\u2032`\u00b4"
_DASHES = "\u2010-\u2015\u2212\ufe58\ufe63\uff0d-"
_MARKS = "\u0300-\u036f"

_ODD = re.compile(
    # For speed: most characters are skipped by this look-ahead.
    rf"(?=[^!-&(-,./-_a-~]|[A-Za-z][{_MARKS}])(?:"
    rf"(?P<space>[^\S ]\s*|[ ]\s+)"
    # A hyphen within a word, also at a line's end: converters add and lose both.
    rf"|(?P<gone>(?<={_LETTER})[-\u2010\u2011\u00ad](?:[^\S\n]*\n\s*)?(?={_LETTER})"
    rf"|[{_INVISIBLE}]+)"
    rf"|(?P<double>''|``|[{_DOUBLE}])"
    rf"|(?P<single>[{_SINGLE}])"
    rf"|(?P<dash>[{_DASHES}]+)"
    rf"|(?P<other>[^\x00-\x7f][{_MARKS}]*|[A-Za-z][{_MARKS}]+))"
)
"""Piece of a text that normalisation changes."""

_BECOMES = {"space": " ", "gone": "", "double": '"', "single": "'", "dash": "-"}


@dataclass(frozen=True)
class Normalised:
    """A normalised text; `text[i]` comes from the original's `original(i, i + 1)`."""

    text: str
    _starts: list[int]
    """Start of each piece in `text`; a removed piece starts where the next one does."""
    _origins: list[tuple[int, int]]
    """[start, end) of each piece in the original; plain pieces map character by character."""
    _plain: list[bool]

    def original(self, start: int, end: int) -> tuple[int, int]:
        """[start, end) in the original of a non-empty [start, end) of `text`."""
        first = bisect_right(self._starts, start) - 1
        last = bisect_right(self._starts, end - 1) - 1
        from_, to = self._origins[first][0], self._origins[last][1]
        if self._plain[first]:
            from_ += start - self._starts[first]
        if self._plain[last]:
            to = self._origins[last][0] + end - self._starts[last]
        return from_, to


@lru_cache(maxsize=64)
def normalise(text: str) -> Normalised:
    """The text with NFKC, plain quotes and dashes, single spaces, and no hyphens within words."""
    parts: list[str] = []
    starts: list[int] = []
    origins: list[tuple[int, int]] = []
    plain: list[bool] = []
    length = 0

    def add(part: str, start: int, end: int, is_plain: bool) -> None:
        nonlocal length
        parts.append(part)
        starts.append(length)
        origins.append((start, end))
        plain.append(is_plain)
        length += len(part)

    done = 0
    for match in _ODD.finditer(text):
        if match.start() > done:
            add(text[done : match.start()], done, match.start(), True)
        kind = match.lastgroup or ""
        part = _BECOMES.get(kind, unicodedata.normalize("NFKC", match.group()))
        add(part, *match.span(), False)
        done = match.end()
    if done < len(text):
        add(text[done:], done, len(text), True)
    return Normalised("".join(parts), starts, origins, plain)
