"""Turns of models that were not trained here, in the environment's grammar.

`endpoint.py` calls this module; `env/server/tree/turn.py` reads the grammar.
"""

from __future__ import annotations

import re

_FENCE = re.compile(
    r"[ \t]*(`{3,}|~{3,})[ \t]*((?:repl|py|python3?)[ \t]*(?:\{.*\}|\w+=\"[^\"]*\")?)?\s*",
    re.IGNORECASE,
)
"""A line that opens a block of Python, or closes one; its mark and its label."""
_FINAL = re.compile(r"([ \t]*FINAL(?:_VAR)?\(.*\))\.?\s*")
"""A plain final line, as some models end it."""


def in_grammar(text: str) -> str:
    """A turn as the environment reads it: its only block between "```repl" and "```".

    That grammar is what a trained policy learns. Other models write "```py" or "~~~", close a block
    on the last line of its code, or end a plain final line with a full stop.
    """
    thought, end, said = text.rpartition("</think>")
    lines = said.split("\n")
    fences = [
        (n, found[1], found[2]) for n, line in enumerate(lines) if (found := _FENCE.fullmatch(line))
    ]
    if not fences:
        finals = ((_FINAL.fullmatch(line), line) for line in lines)
        return thought + end + "\n".join(found[1] if found else line for found, line in finals)
    first, mark, label = fences[0]
    ends = (n for n in range(first + 1, len(lines)) if lines[n].rstrip().endswith(mark))
    last = next(ends, -1)
    # A bare fence beside a final line holds a quote.
    if fences[-1][0] <= last and (label or not any(map(_FINAL.fullmatch, lines))):
        code = lines[last].rstrip().removesuffix(mark)
        lines[last : last + 1] = [code, "```"] if code.strip() else ["```"]
        lines[first] = "```repl"
    return thought + end + "\n".join(lines)
