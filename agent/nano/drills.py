"""Copying drills: sequences in which only copied names count.

Two kinds. *Repeats*: distinct random syllables, then the same again: the plain exercise of
finding a token and reading what followed. *Bindings*: conversations of root and child about two
random names that search for the one and keep lines with the other; only the names in the code
carry loss. Everything around them has weight 0, and names that are a free choice are drawn by
the demonstrations' shares, so drills do not change which strategy is likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np

from agent.nano import strategies
from agent.nano.demonstrations import Conversation, child_conversation, root_conversation
from agent.nano.examples import Example
from agent.nano.settings import MixtureSettings
from env.problems import names
from env.problems.synthetic import QUESTIONS

_PAPERS = (5, 8, 12)


def repeat(rng: Random, first: list[int], second: list[int], start: int) -> Example:
    """Random names twice; in the second round every token is determined.

    Args:
        rng: source of the names.
        first: token ids of first syllables.
        second: token ids of second syllables.
        start: a token to begin with.
    """
    count = rng.randint(8, 16)
    heads, tails = rng.sample(first, count), rng.sample(second, count)
    once = [token for both in zip(heads, tails, strict=True) for token in both]
    ids = np.array([start, *once, *once])
    weights = np.zeros(len(ids), dtype=np.float32)
    weights[len(once) + 2 :] = 1.0
    return Example(ids, weights)


def names_pair(rng: Random, pool: Sequence[str] = names.COMMON) -> tuple[str, str]:
    """Two different names."""
    first, second = rng.sample(pool, 2)
    return first, second


def root_binding(rng: Random, mixture: MixtureSettings) -> Conversation:
    """A root that filters papers by the other name."""
    x, y = names_pair(rng)
    plan = replace(strategies.draw_root(rng, mixture), filter_papers=True)
    papers = rng.choice(_PAPERS)
    question = rng.choice(QUESTIONS).format(x=x, y=y)
    return root_conversation(
        plan, question, papers, hits=rng.randint(1, papers), hint=papers == _PAPERS[0]
    )


def child_binding(rng: Random, mixture: MixtureSettings) -> Conversation:
    """A child that keeps lines with the other name."""
    plan = replace(strategies.draw_child(rng, mixture, names=2), keep="other")
    return child_conversation(plan, names_pair(rng))
