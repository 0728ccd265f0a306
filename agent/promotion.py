"""Whether a challenger is proved better than its opponent: the rule, and nothing else.

Pure functions of problems and rows. A *set* is some hundred problems that both models played in
the mode that is deployed. On one set the challenger must win: the whole interval of the paired
difference of primary_objective, resampled by group, lies above 0, and the mean total reward is
not lower; where more of its episodes are void than of the other's, the former must hold even if
those were lost. It is promoted when it wins on two sets that share no group. Neighbours:
`agent/evaluation.py` makes rows and pairs, `tasks/promote.py` plays and writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from agent.evaluation import Row, compare
from agent.rollout import EpisodeSpec
from agent.settings import LEAST_GROUPS, LEAST_PROBLEMS
from agent.statistics import Bootstrap


@dataclass(frozen=True)
class Outcome:
    """One set's result."""

    won: bool
    reason: str
    """In words, with the figures that decided."""
    figures: dict[str, Any]
    """Plain JSON values: counts, and both scores with their means, difference and interval."""


def two_sets(
    problems: Sequence[EpisodeSpec], count: int, seed: int
) -> tuple[list[EpisodeSpec], list[EpisodeSpec]]:
    """Problems of two sets that share no group, each with the seed of its episode.

    Groups are dealt in turn, difficulty by difficulty, so that both sets are alike.

    Args:
        problems: what there is to choose from.
        count: a set takes groups until it has so many problems; fewer when there are no more.
        seed: the same seed and the same problems give the same sets.
    """
    groups: dict[str, list[EpisodeSpec]] = {}
    for spec in problems:
        groups.setdefault(spec.group_id, []).append(spec)
    # A level's groups in random order, and the levels in turn: what is cut off is cut evenly.
    levels: dict[str, list[str]] = {}
    for group_id, members in groups.items():
        levels.setdefault(members[0].difficulty, []).append(group_id)
    ranked = []
    for level, ids in levels.items():
        Random(f"{seed}/{level}").shuffle(ids)
        ranked += [(place // 2, level, place % 2, group_id) for place, group_id in enumerate(ids)]
    sets: list[list[EpisodeSpec]] = [[], []]
    for _, _, which, group_id in sorted(ranked):
        if len(sets[which]) < count:
            sets[which].extend(groups[group_id])
    first, second = (
        [replace(spec, seed=seed * 1_000_003 + place) for place, spec in enumerate(chosen)]
        for chosen in sets
    )
    return first, second


def too_small(sets: Sequence[Sequence[EpisodeSpec]]) -> str | None:
    """Why the smallest of the sets proves nothing, in words; None if all are large enough."""
    problems = min(len(chosen) for chosen in sets)
    groups = min(len({spec.group_id for spec in chosen}) for chosen in sets)
    if problems >= LEAST_PROBLEMS and groups >= LEAST_GROUPS:
        return None
    return (
        f"a set of {problems} problems in {groups} groups proves nothing, {LEAST_PROBLEMS} in "
        f"{LEAST_GROUPS} are needed in each of two"
    )


def compare_on_set(
    opponent: Sequence[Row], challenger: Sequence[Row], bootstrap: Bootstrap
) -> Outcome:
    """Whether the challenger won on one set.

    Args:
        opponent: its rows, one a problem.
        challenger: its rows on the same problems and seeds.
        bootstrap: how intervals are made; its level is the rule's.

    Raises:
        ValueError: fewer than `LEAST_PROBLEMS` pairs are without a void: infrastructure failed, and
            nothing can be said of the models.
    """
    primary = _scores(opponent, challenger, "primary_objective", bootstrap)
    reward = _scores(opponent, challenger, "reward", bootstrap)
    if primary["pairs"] < LEAST_PROBLEMS:
        voids = [row["void"] for row in (*opponent, *challenger) if row["void"] is not None]
        raise ValueError(
            f"only {primary['pairs']} of {len(opponent)} pairs of episodes are without a void, "
            f"{LEAST_PROBLEMS} are needed; the first void: {voids[0] if voids else 'none'}"
        )
    low, high = primary["interval"]
    told = f"primary objective {_told(primary)}"
    surplus = _voids(challenger) - _voids(opponent)
    at_worst = (opponent, _lost(challenger), "primary_objective", bootstrap)
    if high < 0:
        won, reason = False, f"worse: {told}"
    elif low <= 0:
        won, reason = False, f"not proved better: {told}"
    elif reward["difference"] < 0:
        won, reason = False, f"its total reward is lower, {_told(reward)}, though {told}"
    elif surplus > 0 and (worst := _scores(*at_worst))["interval"][0] <= 0:
        lost = f"{surplus} more of its episodes are void than of the other's; were they lost"
        won, reason = False, f"not proved better: {lost}, {_told(worst)}"
    else:
        won, reason = True, told
    figures = {
        "n": len(opponent),
        "groups": len({row["group_id"] for row in opponent}),
        "primary_objective": primary,
        "reward": reward,
        "won": won,
    }
    return Outcome(won, reason, figures)


def _voids(rows: Sequence[Row]) -> int:
    return sum(row["void"] is not None for row in rows)


def _lost(rows: Sequence[Row]) -> list[Row]:
    """The rows, with 0 where an episode is void: it must not pay to bring that about."""
    zero = {"void": None, "primary_objective": 0.0, "reward": 0.0}
    return [row if row["void"] is None else {**row, **zero} for row in rows]


def _scores(
    opponent: Sequence[Row], challenger: Sequence[Row], score: str, bootstrap: Bootstrap
) -> dict[str, Any]:
    found = compare(opponent, challenger, score, bootstrap)
    return {
        "opponent": found.before,
        "challenger": found.after,
        "difference": found.difference.mean,
        "interval": found.difference.bounds,
        "level": found.difference.level,
        "pairs": found.difference.n,
    }


def _told(scores: dict[str, Any]) -> str:
    low, high = scores["interval"]
    return (
        f"{scores['opponent']:.3f} -> {scores['challenger']:.3f} ({scores['difference']:+.3f}, "
        f"{100 * scores['level']:g} % interval {low:+.3f} to {high:+.3f})"
    )
