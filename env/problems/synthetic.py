"""Synthetic problems: all collections of the world `fields`.

Nothing is read from disk; the same settings give the same bytes in every process.
"""

from __future__ import annotations

from env.problems.fields import write_collection
from env.problems.schema import SPLITS, Problem
from env.problems.settings import SyntheticSettings


def generate(settings: SyntheticSettings) -> list[Problem]:
    """Problems of all splits and levels, in a fixed order.

    Args:
        settings: sizes, levels and the seed.

    Returns:
        `collections[split] x questions_per_collection` problems for each split and level, without
        those whose question a later split asks too: names may repeat in large worlds. Each gold
        span is a whole sentence.
    """
    problems = [
        problem
        for split in SPLITS
        for difficulty in settings.levels_of(split)
        for number in range(settings.collections.get(split, 0))
        for problem in write_collection(settings, split, difficulty, number)
    ]
    asked: dict[str, str] = {problem.question: problem.split for problem in problems}
    return [problem for problem in problems if asked[problem.question] == problem.split]
