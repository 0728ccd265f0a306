"""Parser of a policy's raw text: its blocks, and a final answer on a plain line.

Pure functions of text; nothing runs here. Source: the recursive-language-model scaffold of
Zhang, Kraska and Khattab (alexzhang13/rlm), whose models write ```repl blocks and end with a
plain line `FINAL(...)` or `FINAL_VAR(name)`. Departures: a turn has exactly one block, the closing
fence is on a line of its own, and text before `</think>` is ignored. Models that were not trained
here often write ```python: such blocks count where a turn opens none with ```repl.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from env.chat_tokens import without_thought

_REPL = re.compile(r"^[ \t]*```repl[ \t]*\r?$", re.MULTILINE)
_PYTHON = re.compile(r"^[ \t]*```python[ \t]*\r?$", re.MULTILINE)
_CLOSE = re.compile(r"^[ \t]*```[ \t]*\r?$", re.MULTILINE)
_FINAL_VAR = re.compile(r"^[ \t]*FINAL_VAR\([ \t]*[\"']?(\w+)[\"']?[ \t]*\)[ \t]*$", re.MULTILINE)
_FINAL = re.compile(r"^[ \t]*FINAL\(", re.MULTILINE)
_LAST_PARENTHESIS = re.compile(r"\)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Turn:
    """One parsed turn."""

    blocks: tuple[str, ...]
    """Code of each closed block."""
    opened: int
    """Number of opened blocks, closed or not."""
    final_code: str | None = None
    """A plain FINAL or FINAL_VAR line, as code for the frame's REPL."""
    final_text: str | None = None
    """Text inside a plain FINAL line: the answer if it is not a Python value."""

    @property
    def well_formed(self) -> bool:
        """Whether the turn has exactly one block, or no block and a plain final line."""
        if self.opened == 0:
            return self.final_code is not None
        return self.opened == 1 and len(self.blocks) == 1


def parse(text: str) -> Turn:
    """Parse one turn of the policy, in time linear in its length."""
    text = without_thought(text)
    opening = _REPL if _REPL.search(text) else _PYTHON
    blocks, rest = _split(text, opening)
    opened = len(blocks) + len(opening.findall(rest))
    if match := _FINAL_VAR.search(rest):
        return Turn(blocks, opened, final_code=f'FINAL_VAR("{match.group(1)}")')
    if match := _FINAL.search(rest):
        ends = [end.start() for end in _LAST_PARENTHESIS.finditer(rest, match.end())]
        if ends:
            inside = rest[match.end() : ends[-1]].strip()
            return Turn(blocks, opened, final_code=f"FINAL({inside})", final_text=inside)
    return Turn(blocks, opened)


def _split(text: str, opening: re.Pattern[str]) -> tuple[tuple[str, ...], str]:
    """The code of the closed blocks, and the text around them."""
    blocks, rest, place = [], [], 0
    # If no closing fence follows this opening, no later block is closed either.
    while (start := opening.search(text, place)) and (end := _CLOSE.search(text, start.end())):
        blocks.append(text[start.end() + 1 : end.start()])
        rest.append(text[place : start.start()])
        place = end.end()
    return tuple(blocks), "".join([*rest, text[place:]])
