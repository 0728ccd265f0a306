"""The groups a step learns from: played, void episodes replaced, dull groups exchanged.

What a step plays is a function of seed, step, and what came of it, so a resumed run needs nothing
saved. Neighbours: `agent/schedule.py` chooses problems and seeds, `agent/curriculum.py` levels;
`agent/rollout.py` plays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from agent.advantages import has_signal, valid_reward
from agent.curriculum import Curriculum
from agent.rollout import EpisodeSpec
from agent.schedule import episode_seed, groups_for, other_groups
from agent.settings import TrainSettings
from agent.trajectory import Trajectory
from env.errors import EpisodeError

logger = logging.getLogger(__name__)

Play = Callable[[Sequence[EpisodeSpec]], list[Trajectory]]
Problems = Mapping[str, Sequence[EpisodeSpec]]


@dataclass
class Drawn:
    """What was played for a step."""

    groups: list[list[Trajectory]]
    """To learn from, one group a problem."""
    episodes: list[Trajectory]
    """To report and to move the curriculum by: all of the step's own problems, void ones
    included. Exchanged groups stay in and their substitutes stay out, because those were chosen
    for their spread: a mean over them would say nothing about the policy."""
    replaced_voids: int = 0
    """Void episodes that another one stands in for."""
    resampled_groups: int = 0
    """Groups exchanged for one with a signal."""
    extra_episodes: int = 0
    """Episodes played beyond the step's own, for both purposes."""


def draw_groups(
    play: Play, step: int, curriculum: Curriculum, problems: Problems, settings: TrainSettings
) -> Drawn:
    """Play a step.

    Args:
        play: plays episodes, in the order of the specs.
        step: from 1.
        curriculum: its present level decides what is played.
        problems: by level.
        settings: sizes, seed, `replace_voids`, `resample_groups`.
    """
    levels = curriculum.levels_for(
        settings.problems_per_step, np.random.default_rng([settings.seed, step])
    )
    specs = groups_for(step, levels, problems, group_size=settings.group_size, seed=settings.seed)
    groups = _play_groups(play, specs)
    drawn = Drawn(groups=groups, episodes=[tree for group in groups for tree in group])
    _replace_voids(play, step, specs, drawn, settings)
    _exchange_flat_groups(play, step, specs, drawn, curriculum, problems, settings)
    return drawn


def _replace_voids(
    play: Play,
    step: int,
    specs: Sequence[Sequence[EpisodeSpec]],
    drawn: Drawn,
    settings: TrainSettings,
) -> None:
    """Play void episodes again: once as they were, then with seeds of their own.

    The first try is the very episode that was lost, if only the machine was at fault: so which
    episodes a group holds does not depend on what the machine lost.
    """
    for attempt in range(settings.replace_voids):
        places = [
            (g, i)
            for g, group in enumerate(drawn.groups)
            for i, tree in enumerate(group)
            if tree.void is not None
        ]
        again = [
            specs[g][i]
            if attempt == 0
            else replace(specs[g][i], seed=episode_seed(settings.seed, step, g, i, attempt))
            for g, i in places
        ]
        played = _play_extra(play, again, drawn)
        for (g, i), tree in zip(places, played, strict=False):
            if tree.void is None:
                drawn.groups[g][i] = tree
                drawn.episodes.append(tree)
                drawn.replaced_voids += 1


def _exchange_flat_groups(
    play: Play,
    step: int,
    specs: Sequence[Sequence[EpisodeSpec]],
    drawn: Drawn,
    curriculum: Curriculum,
    problems: Problems,
    settings: TrainSettings,
) -> None:
    """Exchange groups without a signal for others that have one, as far as they are found."""
    taken = {group[0].problem_id for group in specs}
    for attempt in range(1, settings.resample_groups + 1):
        flat = [g for g, group in enumerate(drawn.groups) if not _has_signal(group, settings)]
        if not flat:
            return
        levels = curriculum.levels_for(
            len(flat), np.random.default_rng([settings.seed, step, attempt])
        )
        others = other_groups(
            step,
            attempt,
            levels,
            problems,
            taken=taken,
            group_size=settings.group_size,
            seed=settings.seed,
        )
        taken |= {group[0].problem_id for group in others}
        played = _play_extra(play, [spec for group in others for spec in group], drawn)
        found = [group for group in _grouped(played, others) if _has_signal(group, settings)]
        for g, group in zip(flat, found, strict=False):
            drawn.groups[g] = group
            drawn.resampled_groups += 1


def _has_signal(group: Sequence[Trajectory], settings: TrainSettings) -> bool:
    rewards = (valid_reward(tree) for tree in group)
    return has_signal([reward for reward in rewards if reward is not None], settings)


def _play_groups(play: Play, specs: Sequence[Sequence[EpisodeSpec]]) -> list[list[Trajectory]]:
    return _grouped(play([spec for group in specs for spec in group]), specs)


def _grouped(
    played: Sequence[Trajectory], specs: Sequence[Sequence[EpisodeSpec]]
) -> list[list[Trajectory]]:
    following = iter(played)
    return [[tree for _, tree in zip(group, following, strict=False)] for group in specs]


def _play_extra(play: Play, specs: Sequence[EpisodeSpec], drawn: Drawn) -> list[Trajectory]:
    """Episodes beyond the step's own; none if the environment plays no more.

    An environment that is gone ends the next step with an error; this one is not lost for it.
    """
    if not specs:
        return []
    drawn.extra_episodes += len(specs)
    try:
        return play(specs)
    except EpisodeError as error:
        logger.warning("%d extra episodes could not be played: %s", len(specs), error)
        return []
