"""Which problems a step plays, and with which seeds: a pure function of (seed, step, levels).

Nothing here remembers anything, so a resumed run needs no saved data order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from agent.rollout import EpisodeSpec


def groups_for(
    step: int,
    levels: Sequence[str],
    problems: Mapping[str, Sequence[EpisodeSpec]],
    *,
    group_size: int,
    seed: int,
) -> list[list[EpisodeSpec]]:
    """The groups of one step.

    Each level's problems are gone through in a shuffled order, newly shuffled when all were
    played, as if each step had taken all its problems from that level.

    Args:
        step: from 1.
        levels: level of each group.
        problems: by level, in a fixed order; at least one for each level named.
        group_size: episodes of one problem; they differ in their seeds alone.
        seed: of the run.
    """
    names = sorted(problems)
    groups = []
    for slot, level in enumerate(levels):
        choices = problems[level]
        epoch, place = divmod((step - 1) * len(levels) + slot, len(choices))
        order = np.random.default_rng([seed, names.index(level), epoch])
        problem = choices[int(order.permutation(len(choices))[place])]
        groups.append(
            [
                replace(problem, seed=episode_seed(seed, step, slot, sample))
                for sample in range(group_size)
            ]
        )
    return groups


def other_groups(
    step: int,
    attempt: int,
    levels: Sequence[str],
    problems: Mapping[str, Sequence[EpisodeSpec]],
    *,
    taken: Collection[str],
    group_size: int,
    seed: int,
) -> list[list[EpisodeSpec]]:
    """Groups beyond those of `groups_for`: problems drawn at random, none that is taken.

    Args:
        step: from 1.
        attempt: from 1; another one draws others.
        levels: level of each group. One whose problems are all taken gives no group.
        problems: by level, in a fixed order.
        taken: ids of problems that this step has played.
        group_size: episodes of one problem.
        seed: of the run.
    """
    rng = np.random.default_rng([seed, step, attempt, len(levels)])
    used = set(taken)
    groups = []
    for slot, level in enumerate(levels):
        free = [problem for problem in problems[level] if problem.problem_id not in used]
        if not free:
            continue
        problem = free[int(rng.integers(len(free)))]
        used.add(problem.problem_id)
        groups.append(
            [
                replace(problem, seed=episode_seed(seed, step, slot, sample, attempt, 1))
                for sample in range(group_size)
            ]
        )
    return groups


def episode_seed(seed: int, *place: int) -> int:
    """Seed of one episode's sampling, below 2**63.

    Args:
        seed: of the run.
        place: step, slot and sample; for an extra episode what else tells it from all others.
    """
    state = np.random.SeedSequence([seed, *place]).generate_state(1, np.uint64)
    return int(state[0]) >> 1
