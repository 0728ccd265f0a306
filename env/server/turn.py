"""What a policy's raw text says: its blocks, and a final answer written as a plain line.

Pure functions of text; nothing is run here. Source: the recursive-language-model scaffold of
Zhang, Kraska and Khattab (alexzhang13/rlm), whose models write ```repl blocks and end with a
plain line `FINAL(...)` or `FINAL_VAR(name)`. Departures: exactly one block a turn, the closing
fence stands on a line of its own, and what a thinking model writes before `</think>` is no code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_OPEN = re.compile(r"^[ \t]*```repl[ \t]*\r?$", re.MULTILINE)
_CLOSE = re.compile(r"^[ \t]*```[ \t]*\r?$", re.MULTILINE)
_FINAL_VAR = re.compile(r"^[ \t]*FINAL_VAR\([ \t]*[\"']?(\w+)[\"']?[ \t]*\)[ \t]*$", re.MULTILINE)
_FINAL = re.compile(r"^[ \t]*FINAL\(", re.MULTILINE)
_LAST_PARENTHESIS = re.compile(r"\)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Turn:
    """One parsed turn."""

    blocks: tuple[str, ...]
    """Code of each closed repl block."""
    opened: int
    """Blocks opened, closed or not."""
    final_code: str | None = None
    """A plain FINAL or FINAL_VAR line, as code for the frame's REPL."""
    final_text: str | None = None
    """The answer of a plain FINAL line whose inside is no Python value: its text."""

    @property
    def well_formed(self) -> bool:
        """Exactly one block, or no block and a plain final line."""
        if self.opened == 0:
            return self.final_code is not None
        return self.opened == 1 and len(self.blocks) == 1


def parse(text: str) -> Turn:
    """Read one turn of the policy, in time that grows with its length and no faster."""
    blocks, rest = _split(text.rpartition("</think>")[2])
    opened = len(blocks) + len(_OPEN.findall(rest))
    if match := _FINAL_VAR.search(rest):
        return Turn(blocks, opened, final_code=f'FINAL_VAR("{match.group(1)}")')
    if match := _FINAL.search(rest):
        ends = [end.start() for end in _LAST_PARENTHESIS.finditer(rest, match.end())]
        if ends:
            inside = rest[match.end() : ends[-1]].strip()
            return Turn(blocks, opened, final_code=f"FINAL({inside})", final_text=inside)
    return Turn(blocks, opened)


def _split(text: str) -> tuple[tuple[str, ...], str]:
    """The code of the closed blocks, and the text around them."""
    blocks, rest, place = [], [], 0
    # Without a closing fence after this opening there is none after a later one either.
    while (start := _OPEN.search(text, place)) and (end := _CLOSE.search(text, start.end())):
        blocks.append(text[start.end() + 1 : end.start()])
        rest.append(text[place : start.start()])
        place = end.end()
    return tuple(blocks), "".join([*rest, text[place:]])
