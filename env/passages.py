"""Documents cut into passages: paragraphs, sentences, tables. Each is a verbatim slice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

PART = 1 << 15
"""Characters of a document, up to the next blank line, that are indexed together."""
_WRAPPED = 120
"""Longest line of a paragraph that was wrapped; with a longer one, each line is a paragraph."""
_LONGEST = 2000
"""Characters of a passage at most: text without any sentence is cut."""

Span = tuple[int, int]
Piece = tuple[int, int, slice | None, bool]
"""Start and end of a slice, where the names of a row's cells are, and whether the piece before is
of the same paragraph. There are many, so they're bare tuples."""

_BLANK = re.compile(r"\n\s*\n")
_LINE = re.compile("\n")
_SENTENCE = re.compile(r"(?<=[.?!])\s+(?![a-z])|(?<=[\u3002\uff01\uff1f])\s*")
_SAYS = re.compile(r"[^\W_]")
"""A character that says something: a line of a table without any only parts others."""


def passages(text: str, chars: int, least: int) -> Iterator[str]:
    """Paragraphs of a text, the sentences of long ones, and tables, or the rows of long ones.

    A short piece is joined to a neighbour: to the one before if that's of the same paragraph, a run
    of short ones, or the last piece, otherwise to the one after.

    Args:
        text: a document.
        chars: a longer paragraph is cut into sentences, a longer table into rows.
        least: characters of a passage at least, if a neighbour is near.
    """
    for part in parts(text):
        for start, end, _, _ in cut(part, chars, least):
            yield part[start:end]


def parts(text: str) -> Iterator[str]:
    """A text cut at blank lines, so that an index is neither large nor made for nothing."""
    start = 0
    while blank := _BLANK.search(text, start + PART):
        if len(text) - blank.end() < PART:
            break
        yield text[start : blank.start()]
        start = blank.end()
    yield text[start:]


def cut(part: str, chars: int, least: int) -> Iterator[Piece]:
    """The passages of a part; arguments as of `passages`."""
    before: Piece | None = None
    last: Piece | None = None
    together = False  # whether `last` is a run of short pieces, such as cells, a line each
    for piece in _pieces(part, chars):
        start, end, _, follows = piece
        short = end - start < least
        if last and end - last[0] <= _LONGEST:  # otherwise there's too much space between them
            opens = last[1] - last[0] < least
            if opens or (short and (follows or (together and end - last[0] <= _WRAPPED))):
                together = short and (opens or together)
                last = (last[0], end, *last[2:])
                continue
        if before:
            yield before
        before, last, together = last, piece, False
    if before and last and last[1] - last[0] < least and last[1] - before[0] <= _LONGEST:
        before, last = (before[0], last[1], *before[2:]), None
    yield from filter(None, (before, last))


def _pieces(part: str, chars: int) -> Iterator[Piece]:
    """Paragraphs, sentences, tables and rows that say something."""
    for start, stop in _split(_BLANK, part, start=0, stop=len(part)):
        lines = _split(_LINE, part, start, stop)
        for is_table, run in groupby(lines, lambda line: part.startswith("|", line[0])):
            own = list(run)
            whole = own[0][0], own[-1][1]
            if is_table:
                rows = [whole] if whole[1] - whole[0] <= chars else own
                named = len(rows) > 1 and not _SAYS.search(part, *rows[1])  # by `|---|` below
                for row in rows:
                    header = slice(*rows[0]) if named and row != rows[0] else None
                    yield from _slices(part, [row], header)
                continue
            apart = any(end - begin > _WRAPPED for begin, end in own)
            for begin, end in own if apart else [whole]:
                sentences = end - begin > chars
                spans = _split(_SENTENCE, part, begin, end) if sentences else [(begin, end)]
                yield from _slices(part, spans)


def _slices(part: str, spans: Iterable[Span], header: slice | None = None) -> Iterator[Piece]:
    """Pieces of the spans of a paragraph: without space around them, none too long."""
    follows = False
    for begin, stop in spans:
        while begin < stop and part[begin].isspace():
            begin += 1
        while begin < stop and part[stop - 1].isspace():
            stop -= 1
        for start in range(begin, stop, _LONGEST):
            end = stop if stop - start <= _LONGEST else start + _LONGEST
            if _SAYS.search(part, start, end):
                yield start, end, header, follows
                follows = True


def _split(end: re.Pattern[str], text: str, start: int, stop: int) -> Iterator[Span]:
    """Parts of a slice, one by one: a list of them could take ten times its memory."""
    for match in end.finditer(text, start, stop):
        yield start, match.start()
        start = match.end()
    yield start, stop
