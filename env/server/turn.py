"""What a policy's raw text says: its blocks, and a final answer written as a plain line.

Pure functions of text; nothing is run here. Source: the recursive-language-model scaffold of
Zhang, Kraska and Khattab (alexzhang13/rlm), whose models write ```repl blocks and end with a
plain line `FINAL(...)` or `FINAL_VAR(name)`. Departures: exactly one block a turn, the closing
fence stands on a line of its own, and what a thinking model writes before `</think>` is no code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BLOCK = re.compile(r"^[ \t]*```repl[ \t]*\r?\n(.*?)^[ \t]*```[ \t]*\r?$", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^[ \t]*```repl[ \t]*\r?$", re.MULTILINE)
_FINAL_VAR = re.compile(r"^[ \t]*FINAL_VAR\([ \t]*[\"']?(\w+)[\"']?[ \t]*\)[ \t]*$", re.MULTILINE)
_FINAL = re.compile(r"^[ \t]*FINAL\((.*)\)[ \t]*$", re.MULTILINE | re.DOTALL)


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
    """Read one turn of the policy."""
    text = text.rpartition("</think>")[2]
    blocks = tuple(match.group(1) for match in _BLOCK.finditer(text))
    rest = _BLOCK.sub("", text)
    opened = len(blocks) + len(_FENCE.findall(rest))
    if match := _FINAL_VAR.search(rest):
        return Turn(blocks, opened, final_code=f'FINAL_VAR("{match.group(1)}")')
    if match := _FINAL.search(rest):
        inside = match.group(1).strip()
        return Turn(blocks, opened, final_code=f"FINAL({inside})", final_text=inside)
    return Turn(blocks, opened)
