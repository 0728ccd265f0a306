"""Turns of models that were not trained here, in the environment's grammar.

`endpoint.py` calls this module; `env/server/tree/turn.py` reads the grammar.
"""

import re
from textwrap import dedent

_FENCE = re.compile(
    r"[ \t]*(`{3,}|~{3,})[ \t]*"
    r"(\{?\.?(?:repl|i?py(?:thon)?[\d.]*|tool_code)\b(?:[^`=()]|=[\"'\w])*)?\s*",
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
    last = next((n for n in range(first + 1, len(lines)) if lines[n].rstrip().endswith(mark)), -1)
    beside = lines[:first] + lines[last + 1 :]
    # A bare fence beside a final line holds a quote.
    if fences[-1][0] <= last and (label or not any(map(_FINAL.fullmatch, beside))):
        code = [*lines[first + 1 : last], lines[last].rstrip().removesuffix(mark)]
        lines[first : last + 1] = ["```repl", dedent("\n".join(code)).rstrip(), "```"]
    return thought + end + "\n".join(lines)
