"""Texts as they are compared: normalised, as sentences, or as hashes.

Papers come from PDF and HTML converters, quotes from people and models. They differ in line
breaks, hyphens at line ends, ligatures, typographic quotes and dashes. `place.py` searches for
quotes in normalised text, which leads back to the original; `split.py` compares the others.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from array import array
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
    """A normalised text; `text[i]` comes from the original's [starts[i], ends[i])."""

    text: str
    _starts: array[int]
    _ends: array[int]

    def original(self, start: int, end: int) -> tuple[int, int]:
        """[start, end) in the original of a non-empty [start, end) of `text`."""
        return self._starts[start], self._ends[end - 1]


@lru_cache(maxsize=64)
def normalise(text: str) -> Normalised:
    """The text with NFKC, plain quotes and dashes, single spaces, and no hyphens within words."""
    parts: list[str] = []
    starts, ends = array("I"), array("I")

    def keep(start: int, end: int) -> None:
        parts.append(text[start:end])
        starts.extend(range(start, end))
        ends.extend(range(start + 1, end + 1))

    done = 0
    for match in _ODD.finditer(text):
        keep(done, match.start())
        normal = unicodedata.normalize("NFKC", match.group())
        parts.append(_BECOMES.get(match.lastgroup or "", normal))
        starts.extend([match.start()] * len(parts[-1]))
        ends.extend([match.end()] * len(parts[-1]))
        done = match.end()
    keep(done, len(text))
    return Normalised("".join(parts), starts, ends)


_SENTENCE_CHARS = 20
"""Shorter sentences ("Introduction.", "See Table 2.") occur in unrelated papers."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<!\s)\s*\n\s*")
WORD = re.compile(r"\w+")


def sentences(text: str) -> frozenset[int]:
    """Hashes of a paper's sentences of at least 20 characters; papers are compared by them.

    Hashes save memory, because thousands of long papers are compared at once. A collision of two
    64-bit hashes changes a share by at most one sentence.
    """
    parts = (" ".join(part.split()).casefold() for part in _SENTENCE_END.split(text))
    return frozenset(hash(part) for part in parts if len(part) >= _SENTENCE_CHARS)


def question_key(question: str) -> str:
    """Hash of a question's words, 16 hex digits; punctuation and papers do not affect it."""
    return hashlib.sha256(" ".join(WORD.findall(question.casefold())).encode()).hexdigest()[:16]


def position(key: str) -> float:
    """A number in [0, 1) that depends only on the key."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
