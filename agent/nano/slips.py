"""Slips: conversations with a mistake, so that a single wrong token does not end a tree.

A sampling policy makes mistakes that no demonstration contains, and continues from an unseen state.
So the examples contain two kinds of mistakes, and neither has a loss:

- A turn that is not valid Python, with the environment's error, before the correct turn.
- Single wrong tokens within a turn (`examples.noisy`); the rest of the turn is unchanged.
"""

from __future__ import annotations

import re
import warnings
from random import Random

from agent.nano.plans import block
from agent.nano.tokenizer import Conversation
from env import prompts
from env.problems import names

_CODE = re.compile(r"```repl\n(.*)\n```", re.DOTALL)
_PIECE = re.compile(r"\w+|\W")
_TRIES = 8


def with_slip(conversation: Conversation, rng: Random) -> tuple[Conversation, int | None]:
    """Insert a broken attempt before one of the turns.

    Returns:
        The longer conversation and the index of the broken message. If no attempt is broken, the
        conversation itself and None.
    """
    turns = [i for i, message in enumerate(conversation) if message["role"] == "assistant"]
    at = rng.choice(turns)
    for _ in range(_TRIES):
        broken = _break(conversation[at]["content"], rng)
        error = _error(broken)
        if error is not None:
            attempt = {"role": "assistant", "content": broken}
            answer = {"role": "user", "content": error}
            return [*conversation[:at], attempt, answer, *conversation[at:]], at
    return conversation, None


def _break(text: str, rng: Random) -> str:
    """Drop or double a few pieces of a turn, or replace them by names or earlier pieces."""
    match = _CODE.search(text)
    pieces = _PIECE.findall(match.group(1) if match else text)
    start = rng.randrange(len(pieces))
    end = min(len(pieces), start + rng.randint(1, 8))
    instead = rng.choice(
        [
            [],
            pieces[start:end] * 2,
            [rng.choice(names.COMMON) for _ in range(rng.randint(1, 4))],
            pieces[max(0, start - 6) : start],
        ]
    )
    return block("".join([*pieces[:start], *instead, *pieces[end:]]))


def _error(text: str) -> str | None:
    """The environment's error for a turn that is not valid Python; None for a valid one."""
    match = _CODE.fullmatch(text)
    if match is None:
        return prompts.blocks_message(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            compile(match.group(1), "<cell>", "exec")
    except SyntaxError as error:
        return prompts.syntax_message(f"SyntaxError: {error.msg}")
    return None
