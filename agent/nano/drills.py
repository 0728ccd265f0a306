"""Copying drills: sequences in which only copied names have a loss.

- Repeats: distinct random syllables, then the same again. They exercise finding a token and
  reading its successor.
- Bindings: conversations of root and child that search for one of two random names and keep lines
  with the other. Only the names in the code have a loss.

Names that are a free choice follow the demonstrations' shares, so drills do not change the
probability of a strategy.
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
    """Random names twice; each token of the second round is determined.

    Args:
        rng: generator of the names.
        first: token ids of first syllables.
        second: token ids of second syllables.
        start: first token of the sequence.
    """
    count = rng.randint(8, 16)
    heads, tails = rng.sample(first, count), rng.sample(second, count)
    once = [token for both in zip(heads, tails, strict=True) for token in both]
    ids = np.array([start, *once, *once])
    weights = np.zeros(len(ids), dtype=np.float32)
    weights[len(once) + 2 :] = 1.0
    return Example(ids, weights)


def names_pair(rng: Random, pool: Sequence[str] = names.COMMON) -> tuple[str, str]:
    """Draw two different names."""
    first, second = rng.sample(pool, 2)
    return first, second


def root_binding(rng: Random, mixture: MixtureSettings) -> Conversation:
    """Conversation of a root that filters papers by the other name."""
    x, y = names_pair(rng)
    plan = replace(strategies.draw_root(rng, mixture), filter_papers=True)
    papers = rng.choice(_PAPERS)
    question = rng.choice(QUESTIONS).format(x=x, y=y)
    return root_conversation(
        plan, question, papers, hits=rng.randint(1, papers), hint=papers == _PAPERS[0]
    )


def child_binding(rng: Random, mixture: MixtureSettings) -> Conversation:
    """Conversation of a child that keeps lines with the other name."""
    plan = replace(strategies.draw_child(rng, mixture, names=2), keep="other")
    return child_conversation(plan, names_pair(rng))
