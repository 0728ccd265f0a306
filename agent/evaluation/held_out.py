"""Held-out evaluation during training: a few validation problems, greedy, the same at each point.

The training reward follows the curriculum, so it can rise or fall while the policy does not change.
`tasks/train.py` plays the episodes and adds the figures to the step's row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agent.evaluation.report import EpisodeRow, episode_row, mean
from agent.evaluation.statistics import Bootstrap
from agent.rollouts.specs import EpisodeSpec, by_difficulty
from agent.rollouts.trajectory import Trajectory

_BOOTSTRAP = Bootstrap(1000, 0)


def choose_held_out(specs: Sequence[EpisodeSpec], count: int, seed: int) -> list[EpisodeSpec]:
    """Up to `count` problems of each level; the same arguments give the same problems."""
    rng = np.random.default_rng(seed)
    return [
        of_level[place]
        for of_level in by_difficulty(specs).values()
        for place in sorted(rng.permutation(len(of_level))[:count])
    ]


def held_out_metrics(episodes: Sequence[Trajectory], levels: Sequence[str]) -> dict[str, float]:
    """Means over valid episodes, with 95 % intervals of the reward by collection of problems.

    Args:
        episodes: at least one; voids count only in `eval/void_rate`.
        levels: levels of the training. `eval/reward` and the others without a level's name are over
            these; other levels, such as larger collections, have only figures of their own.

    Returns:
        `eval/NAME` and `eval/LEVEL_NAME`; a part without a valid episode is absent.
    """
    rows = [episode_row(episode, "train", "greedy") for episode in episodes]
    valid = [row for row in rows if row["reward"] is not None]
    parts: dict[str, list[EpisodeRow]] = {}
    for row in valid:
        if row["difficulty"] in levels:
            parts.setdefault("", []).append(row)
        parts.setdefault(f"{row['difficulty']}_", []).append(row)
    metrics = {"eval/void_rate": 1 - len(valid) / len(rows)}
    for part, of_part in parts.items():
        metrics |= {f"eval/{part}{name}": value for name, value in _figures(of_part).items()}
    return metrics


def _figures(rows: Sequence[EpisodeRow]) -> dict[str, float]:
    reward = _BOOTSTRAP.mean(
        [row["reward"] for row in rows], [row["collection_id"] for row in rows]
    )
    return {
        "reward": reward.mean,
        "reward_ci95_low": reward.low,
        "reward_ci95_high": reward.high,
        "f1": mean(rows, "f1") or 0.0,
        "success_rate": mean(rows, "success") or 0.0,
        "episodes": float(reward.n),
    }
