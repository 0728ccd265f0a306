"""Slips: what a conversation looks like after a mistake, so that one token does not end a tree.

A policy that samples makes mistakes that no demonstration holds, and then writes on from a state
it never saw. Two kinds are shown to it, and neither is ever its target: a turn that is no Python,
with the error that the environment answers, before the turn that should have come; and single
wrong tokens within a turn, after which the rest goes on as if they were right.
"""

from __future__ import annotations

import re
import warnings
from random import Random

from agent.nano.demonstrations import Conversation
from agent.nano.strategies import block
from env import prompts
from env.problems import names

_CODE = re.compile(r"```repl\n(.*)\n```", re.DOTALL)
_PIECE = re.compile(r"\w+|\W")
_TRIES = 8


def with_slip(conversation: Conversation, rng: Random) -> tuple[Conversation, int | None]:
    """The conversation with a broken attempt before one of its turns.

    Returns:
        The longer conversation, and the place of the broken turn among its messages; the
        conversation as it was, and None, when no attempt turned out to be broken.
    """
    turns = [i for i, message in enumerate(conversation) if message["role"] == "assistant"]
    at = rng.choice(turns)
    for _ in range(_TRIES):
        broken = _break(conversation[at]["content"], rng)
        error = _error(broken)
        if error is not None:
            attempt = {"role": "assistant", "content": broken}
            told = {"role": "user", "content": error}
            return [*conversation[:at], attempt, told, *conversation[at:]], at
    return conversation, None


def _break(text: str, rng: Random) -> str:
    """A turn with a few pieces lost, doubled, or swallowed by names that do not belong there."""
    found = _CODE.search(text)
    pieces = _PIECE.findall(found.group(1) if found else text)
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
    """What the environment answers to a turn that is no Python; None when it is some."""
    found = _CODE.fullmatch(text)
    if found is None:
        return prompts.blocks_message(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            compile(found.group(1), "<cell>", "exec")
    except SyntaxError as error:
        return prompts.syntax_message(f"SyntaxError: {error.msg}")
    return None
