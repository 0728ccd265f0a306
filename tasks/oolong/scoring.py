"""Scores of answers: 1 for the right name, 0.75 to the power of the error for a number."""

from __future__ import annotations

import re
from typing import Any

from tasks.oolong.questions import BY_NAME

BASE = 0.75
"""Factor for each unit that a number is wrong by, as in OOLONG."""
SHOWN = 200
"""Characters of an answer that a record keeps."""
_MOST_ERROR = 400
"""Error beyond which a score is 0 at any precision."""


def plain_text(answer: Any) -> str:
    """An answer as text: a list of one item is the item, and `Answer:` introduces it."""
    while isinstance(answer, list | tuple) and len(answer) == 1:
        answer = answer[0]
    if isinstance(answer, bool | list | tuple | dict) or answer is None:
        return ""
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    parts = re.split(r"answer(?: is)?\s*:?", str(answer), flags=re.I)
    return next((part.strip() for part in reversed(parts) if part.strip()), "")


def score(kind: str, gold: str, answer: Any) -> float:
    """Score in [0, 1] of an answer to a question of this kind.

    A text that names exactly one choice, or holds exactly one number, gives that answer.
    """
    text = plain_text(answer)
    choices = BY_NAME[kind].choices
    if choices is None:
        numbers = re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
        if len(numbers) != 1 or not re.fullmatch(r"\d{1,9}", numbers[0]):
            return 0.0
        error = abs(int(numbers[0]) - int(gold))
        return BASE**error if error < _MOST_ERROR else 0.0
    words = set(re.findall(r"\w+", text.lower()))
    named = [choice for choice in choices() if choice.lower() in words]
    return float(named == [gold])
