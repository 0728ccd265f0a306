"""Promotion rule: when a challenger is proved better than its opponent.

Pure functions of problems and rows. A *set* has some hundred problems that both models played in
the deployed mode. The challenger wins a set under three conditions:

- The whole interval of the paired difference of primary_objective, by collection, is above 0.
- The mean total reward is not lower.
- If the challenger has more voids, the first condition holds even if they count as 0.

It is promoted when it wins on two sets that share no collection. Neighbours: `report.py` makes
rows and pairs; `tasks/promote.py` plays and writes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from agent.evaluation.report import EpisodeRow, charge_surplus, compare, voids
from agent.evaluation.statistics import Bootstrap
from agent.rollouts.specs import EpisodeSpec
from agent.settings import LEAST_COLLECTIONS, LEAST_PROBLEMS


@dataclass(frozen=True)
class Outcome:
    """Result of one set."""

    won: bool
    reason: str
    """Sentence with the figures that decided."""
    figures: dict[str, Any]
    """JSON values: counts, and both scores with means, difference and interval."""


def two_sets(
    problems: Sequence[EpisodeSpec], count: int, seed: int
) -> tuple[list[EpisodeSpec], list[EpisodeSpec]]:
    """Choose the problems of two sets that share no collection, each with its episode's seed.

    The sets take collections in turn, difficulty by difficulty, so that they are alike.

    Args:
        problems: problems to choose from.
        count: problems of a set, evenly of at least `LEAST_COLLECTIONS` collections; fewer if they
            run out.
        seed: the same seed and the same problems give the same sets.
    """
    collections: dict[str, list[EpisodeSpec]] = {}
    for spec in problems:
        collections.setdefault(spec.collection_id, []).append(spec)
    # Shuffle within a level, then take the levels in turn, so that the cut at `count` is even.
    levels: dict[str, list[str]] = {}
    for name, members in collections.items():
        levels.setdefault(members[0].difficulty, []).append(name)
    ranked = []
    for level, names in levels.items():
        Random(f"{seed}/{level}").shuffle(names)
        ranked += [(place // 2, level, place % 2, name) for place, name in enumerate(names)]
    sets: list[list[EpisodeSpec]] = [[], []]
    taken = [0, 0]
    for _, _, which, name in sorted(ranked):
        if len(sets[which]) < count or taken[which] < LEAST_COLLECTIONS:
            sets[which].extend(collections[name])
            taken[which] += 1
    sets = [_evenly(chosen, count, seed) for chosen in sets]
    first, second = (
        [replace(spec, seed=seed * 1_000_003 + n) for n, spec in enumerate(chosen, start)]
        for start, chosen in ((0, sets[0]), (len(sets[0]), sets[1]))
    )
    return first, second


def _evenly(problems: Sequence[EpisodeSpec], count: int, seed: int) -> list[EpisodeSpec]:
    """So many of some problems, in their order: first one of each collection, then another one."""
    order = Random(f"{seed}/evenly").sample(range(len(problems)), len(problems))
    before: Counter[str] = Counter()
    turns: dict[int, int] = {}
    for place in order:
        turns[place] = before[problems[place].collection_id]
        before[problems[place].collection_id] += 1
    return [problems[place] for place in sorted(sorted(order, key=turns.__getitem__)[:count])]


def too_small(sets: Sequence[Sequence[EpisodeSpec]]) -> str | None:
    """Reason why the smallest set proves nothing; None if all are large enough."""
    problems = min(len(chosen) for chosen in sets)
    collections = min(len({spec.collection_id for spec in chosen}) for chosen in sets)
    if problems >= LEAST_PROBLEMS and collections >= LEAST_COLLECTIONS:
        return None
    return (
        f"a set of {problems} problems in {collections} collections proves nothing (each of the "
        f"two needs {LEAST_PROBLEMS} in {LEAST_COLLECTIONS})"
    )


def compare_on_set(
    opponent: Sequence[EpisodeRow], challenger: Sequence[EpisodeRow], bootstrap: Bootstrap
) -> Outcome:
    """Whether the challenger won on one set.

    Args:
        opponent: the opponent's rows, one per problem.
        challenger: the challenger's rows on the same problems and seeds.
        bootstrap: method and level of the intervals.

    Raises:
        ValueError: fewer than `LEAST_PROBLEMS` pairs are free of voids, so infrastructure failures
            prevent a decision.
    """
    primary = _scores(opponent, challenger, "primary_objective", bootstrap)
    reward = _scores(opponent, challenger, "reward", bootstrap)
    if primary["pairs"] < LEAST_PROBLEMS:
        lost = [row["void"] for row in (*opponent, *challenger) if row["void"] is not None]
        raise ValueError(
            f"only {primary['pairs']} of {len(opponent)} pairs of episodes are free of voids, "
            f"{LEAST_PROBLEMS} are needed (first void: {lost[0] if lost else 'none'})"
        )
    low, high = primary["interval"]
    result = f"primary objective {_described(primary)}"
    surplus = sum(voids(challenger).values()) - sum(voids(opponent).values())
    at_worst = (opponent, charge_surplus(opponent, challenger), "primary_objective", bootstrap)
    if high < 0:
        won, reason = False, f"worse: {result}"
    elif low <= 0:
        won, reason = False, f"not proved better: {result}"
    elif reward["difference"] < 0:
        won, reason = False, f"its total reward is lower, {_described(reward)}, though {result}"
    elif surplus > 0 and (worst := _scores(*at_worst))["interval"][0] <= 0:
        more = f"{surplus} more of its episodes are void than of the other's; if they count as 0"
        won, reason = False, f"not proved better: {more}, {_described(worst)}"
    else:
        won, reason = True, result
    figures = {
        "n": len(opponent),
        "collections": len({row["collection_id"] for row in opponent}),
        "primary_objective": primary,
        "reward": reward,
        "won": won,
    }
    return Outcome(won, reason, figures)


def _scores(
    opponent: Sequence[EpisodeRow],
    challenger: Sequence[EpisodeRow],
    score: str,
    bootstrap: Bootstrap,
) -> dict[str, Any]:
    comparison = compare(opponent, challenger, score, bootstrap)
    return {
        "opponent": comparison.before,
        "challenger": comparison.after,
        "difference": comparison.difference.mean,
        "interval": comparison.difference.bounds,
        "level": comparison.difference.level,
        "pairs": comparison.difference.n,
    }


def _described(scores: dict[str, Any]) -> str:
    low, high = scores["interval"]
    return (
        f"{scores['opponent']:.3f} -> {scores['challenger']:.3f} ({scores['difference']:+.3f}, "
        f"{100 * scores['level']:g} % interval {low:+.3f} to {high:+.3f})"
    )
