"""Problems and seeds of a step: a pure function of seed, step and levels.

Without state, a resumed run needs no saved data order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from agent.rollouts.specs import EpisodeSpec
from agent.settings import TrainSettings

Problems = Mapping[str, Sequence[EpisodeSpec]]
"""Problems by level, in a fixed order."""


def groups_for(
    step: int, levels: Sequence[str], problems: Problems, settings: TrainSettings
) -> list[list[EpisodeSpec]]:
    """The groups of a step.

    Each level's problems are used in a shuffled order, which changes when all were used. The
    position in it is that of a run whose every problem had this level.

    Args:
        step: number of the step, from 1.
        levels: level of each group.
        problems: at least one problem for each level.
        settings: `group_size` and `seed`; the episodes of a group differ only in their seeds.
    """
    names = sorted(problems)
    groups = []
    for slot, level in enumerate(levels):
        choices = problems[level]
        epoch, place = divmod((step - 1) * len(levels) + slot, len(choices))
        order = np.random.default_rng([settings.seed, names.index(level), epoch])
        problem = choices[int(order.permutation(len(choices))[place])]
        groups.append(_group(problem, settings, step, slot))
    return groups


def other_groups(
    step: int,
    attempt: int,
    levels: Sequence[str],
    problems: Problems,
    taken: Collection[str],
    settings: TrainSettings,
) -> list[list[EpisodeSpec]]:
    """Groups beyond those of `groups_for`: random problems that are not taken.

    Args:
        step: number of the step, from 1.
        attempt: number of the attempt, from 1; each draws other problems.
        levels: level of each group; a level whose problems are all taken gives no group.
        problems: problems by level.
        taken: ids of the problems that this step has played.
        settings: `group_size` and `seed`.
    """
    rng = np.random.default_rng([settings.seed, step, attempt, len(levels)])
    used = set(taken)
    groups = []
    for slot, level in enumerate(levels):
        free = [problem for problem in problems[level] if problem.problem_id not in used]
        if not free:
            continue
        problem = free[int(rng.integers(len(free)))]
        used.add(problem.problem_id)
        groups.append(_group(problem, settings, step, slot, attempt, 1))
    return groups


def _group(
    problem: EpisodeSpec, settings: TrainSettings, step: int, slot: int, *extra: int
) -> list[EpisodeSpec]:
    return [
        replace(problem, seed=episode_seed(settings.seed, step, slot, sample, *extra))
        for sample in range(settings.group_size)
    ]


def episode_seed(seed: int, *place: int) -> int:
    """Sampling seed of an episode, below 2**63.

    Args:
        seed: seed of the run.
        place: step, slot and sample; for an extra episode also numbers that make it unique.
    """
    state = np.random.SeedSequence([seed, *place]).generate_state(1, np.uint64)
    return int(state[0]) >> 1
