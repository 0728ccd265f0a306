"""Groups of a step: episodes played, voids replaced, groups without a signal exchanged.

A policy's code can slow the machine until an episode is void. So such a void is replaced once a
problem, and further ones get their group's lowest reward: voiding a poor episode never pays. The
same goes for an episode whose connection is lost again in its replay, unless one of the valid
episodes that are played beside these replays is lost, too. Then it was an outage, and nobody is
charged.

Problems and seeds of a step are a function of seed, step, levels and results, so a resumed run
needs no saved state. Neighbours: `curriculum.py` chooses levels, `agent/rollouts/engine.py` plays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from agent.settings import TrainSettings
from agent.training.advantages import has_signal, valid_reward
from agent.training.curriculum import Curriculum
from env.errors import EpisodeError
from env.models import BUSY

REPLAYS = 2
"""Most replays of a void episode: as it was, then with another seed."""

logger = logging.getLogger(__name__)

Play = Callable[[Sequence[EpisodeSpec]], list[Trajectory]]
Problems = Mapping[str, Sequence[EpisodeSpec]]
"""Problems by level, in a fixed order."""


@dataclass
class Drawn:
    """Episodes played for a step."""

    groups: list[list[Trajectory]]
    """Groups to learn from, one per problem."""
    episodes: list[Trajectory]
    """Episodes of the step's own problems, voids included: for metrics and the curriculum.

    Exchanged groups stay in and their substitutes stay out. The substitutes were chosen for their
    spread, so a mean over them would not describe the policy.
    """
    replaced_voids: int = 0
    """Void episodes replaced by valid ones."""
    charged_voids: int = 0
    """Void episodes that have the least reward of their group."""
    flat_groups: list[list[Trajectory]] = field(default_factory=list)
    """Groups of the step's own problems without a signal, exchanged ones included."""
    resampled_groups: int = 0
    """Groups exchanged for one with a signal."""
    extra_episodes: int = 0
    """Episodes played beyond the step's own, for both purposes."""


def draw_groups(
    play: Play, step: int, curriculum: Curriculum, problems: Problems, settings: TrainSettings
) -> Drawn:
    """Play the episodes of a step.

    Args:
        play: plays episodes in the order of the specs.
        step: number of the step, from 1.
        curriculum: gives the levels of the problems.
        problems: problems by level.
        settings: sizes, seed, `resample_groups`.
    """
    levels = curriculum.levels_for(
        settings.problems_per_step, np.random.default_rng([settings.seed, step])
    )
    specs = groups_for(step, levels, problems, settings)
    groups = _grouped(play([spec for group in specs for spec in group]), specs)
    drawn = Drawn(groups=groups, episodes=[tree for group in groups for tree in group])
    _replace_voids(play, step, specs, drawn, settings)
    drawn.flat_groups = [group for group in groups if not _has_signal(group, settings)]

    # Exchange groups without a signal for groups of other problems that have one.
    taken = {group[0].problem_id for group in specs}
    for attempt in range(1, settings.resample_groups + 1):
        flat = [g for g, group in enumerate(groups) if not _has_signal(group, settings)]
        if not flat:
            break
        rng = np.random.default_rng([settings.seed, step, attempt])
        levels = curriculum.levels_for(len(flat), rng)
        others = other_groups(step, attempt, levels, problems, taken, settings)
        taken |= {group[0].problem_id for group in others}
        played = _play_extra(play, [spec for group in others for spec in group], drawn)
        charged = [_charge(group, _first_busy(group)) for group in _grouped(played, others)]
        substitutes = [group for group in charged if _has_signal(group, settings)]
        for g, group in zip(flat, substitutes, strict=False):
            groups[g] = group
            drawn.resampled_groups += 1
    return drawn


def _replace_voids(
    play: Play,
    step: int,
    specs: Sequence[Sequence[EpisodeSpec]],
    drawn: Drawn,
    settings: TrainSettings,
) -> None:
    """Replay void episodes, first with their own seeds and then with others; charge the rest.

    The first replay repeats the lost episode. So if only the machine failed, a group has the same
    episodes as without the failure.
    """
    # Index of the one clock void of each group that is not charged; -1 once a replay was another.
    excused = [_first_busy(group) for group in drawn.groups]
    repeated: set[tuple[int, int]] = set()
    for attempt in range(REPLAYS):
        places = [
            (g, i)
            for g, group in enumerate(drawn.groups)
            for i, tree in enumerate(group)
            if tree.void is not None and (tree.void != BUSY or i == excused[g])
            if (g, i) not in repeated
        ]
        replays = [
            specs[g][i]
            if attempt == 0
            else replace(specs[g][i], seed=episode_seed(settings.seed, step, g, i, attempt))
            for g, i in places
        ]
        if attempt == 0:
            played, repeated = _play_beside_valid(play, places, replays, specs, drawn)
        else:
            played = _play_extra(play, replays, drawn)
        for (g, i), tree in zip(places, played, strict=False):
            if tree.void is None:
                drawn.groups[g][i] = tree
                drawn.episodes.append(tree)
                drawn.replaced_voids += 1
            elif tree.void == BUSY:
                drawn.groups[g][i] = tree
                excused[g] = i if excused[g] is None else -1
    for g, group in enumerate(drawn.groups):
        drawn.groups[g] = _charge(group, excused[g], {i for h, i in repeated if h == g})
        drawn.charged_voids += sum(a is not b for a, b in zip(group, drawn.groups[g], strict=True))


def _first_busy(group: Sequence[Trajectory]) -> int | None:
    return next((i for i, tree in enumerate(group) if tree.void == BUSY), None)


def _play_beside_valid(
    play: Play,
    places: Sequence[tuple[int, int]],
    replays: Sequence[EpisodeSpec],
    specs: Sequence[Sequence[EpisodeSpec]],
    drawn: Drawn,
) -> tuple[list[Trajectory], set[tuple[int, int]]]:
    """Play episodes again, and a valid one beside each that was lost.

    Args:
        play: plays episodes in the order of the specs.
        places: (group, index) of the episodes.
        replays: their specs.
        specs: specs of all groups.
        drawn: the groups.

    Returns:
        The episodes, and the places of those that were lost again though no valid one was.
    """
    valid = (
        specs[g][i]
        for g, group in enumerate(drawn.groups)
        for i, tree in enumerate(group)
        if tree.void is None
    )
    batch: list[EpisodeSpec] = []
    own: list[int] = []
    for (g, i), spec in zip(places, replays, strict=True):
        own.append(len(batch))
        # Next to it, so that both are in flight at the same time.
        batch += [spec, *(islice(valid, 1) if drawn.groups[g][i].lost else ())]
    played = _play_extra(play, batch, drawn)
    if not played:
        return [], set()
    beside = [tree for n, tree in enumerate(played) if n not in own]
    outage = not beside or any(tree.void is not None for tree in beside)
    trees = [played[n] for n in own]
    lost = {
        (g, i)
        for (g, i), tree in zip(places, trees, strict=True)
        if tree.lost and drawn.groups[g][i].lost
    }
    return trees, set() if outage else lost


def _charge(
    group: Sequence[Trajectory], excused: int | None, repeated: Collection[int] = ()
) -> list[Trajectory]:
    """The group with its least reward for repeated losses, and clock voids but the excused one.

    Without a valid episode, a group has no least reward and stays as it is.
    """
    rewards = [reward for tree in group if (reward := valid_reward(tree)) is not None]
    charged = list(group)
    for i, tree in enumerate(group):
        if rewards and (i in repeated or (tree.void == BUSY and i != excused)):
            charged[i] = replace(tree, void=None, reward=min(rewards))
            for frame in tree.frames.values():  # whoever lost the connection left some of them open
                frame.stop_reason = frame.stop_reason or "timeout"
    return charged


def _has_signal(group: Sequence[Trajectory], settings: TrainSettings) -> bool:
    return has_signal([valid_reward(tree) for tree in group], settings)


def _grouped(
    played: Sequence[Trajectory], specs: Sequence[Sequence[EpisodeSpec]]
) -> list[list[Trajectory]]:
    following = iter(played)
    return [[tree for _, tree in zip(group, following, strict=False)] for group in specs]


def _play_extra(play: Play, specs: Sequence[EpisodeSpec], drawn: Drawn) -> list[Trajectory]:
    """Play episodes beyond the step's own; the list is empty if the environment is lost.

    A lost environment ends the next step with an error; this step keeps its own episodes.
    """
    if not specs:
        return []
    drawn.extra_episodes += len(specs)
    try:
        return play(specs)
    except EpisodeError as error:
        logger.warning("%d extra episodes could not be played: %s", len(specs), error)
        return []


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
    return int(np.random.SeedSequence([seed, *place]).generate_state(1, np.uint64)[0]) >> 1
