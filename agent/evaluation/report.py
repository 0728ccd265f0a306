"""Evaluation report: a row for each episode, paired comparisons and summaries.

A model could choose its episodes by making poor ones void. So if the second model has more voids
than the first, its voids count as 0 in every score. Promotion has the same rule.

Pure functions of trajectories and rows. `tasks/evaluate.py` loads models and plays;
`statistics.py` computes the intervals.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from agent.evaluation.statistics import Bootstrap, Interval
from agent.rollouts.trajectory import Trajectory
from env.models import AnswerMetrics
from rewards.combine import COMPONENTS

Mode = Literal["greedy", "sampled"]
EpisodeRow = dict[str, Any]
"""Row of an episode from `episode_row`; every score of a void episode is None."""

METRICS = tuple(AnswerMetrics.model_fields)
"""Names of the agreement with gold."""
SCORES = ("reward", *COMPONENTS, *METRICS)
_ZERO = dict.fromkeys(SCORES, 0.0) | {"success": False}
_LABELS = ("problem_id", "collection_id", "difficulty", "tier")


def episode_row(trajectory: Trajectory, model: str, mode: Mode) -> EpisodeRow:
    """Flat row of an episode.

    Args:
        trajectory: record of the episode.
        model: `before`, `after` or any other name.
        mode: decoding of its turns.
    """
    turns = [turn for frame in trajectory.frames.values() for turn in frame.turns]
    metrics, counters = trajectory.metrics, trajectory.counters
    played = trajectory.void is None
    scores: EpisodeRow = {
        "reward": trajectory.reward,
        **{name: trajectory.components.get(name) for name in COMPONENTS},
        **(metrics.model_dump() if metrics else dict.fromkeys(METRICS)),
    }
    return {
        "model": model,
        "mode": mode,
        **_fields(trajectory, *_LABELS),
        **(scores if played else dict.fromkeys(SCORES)),
        "success": trajectory.succeeded if played else None,
        "stop_reason": trajectory.root.stop_reason if trajectory.frames else None,
        **_fields(counters, "turns", "sub_calls", "frames", "max_depth"),
        **_fields(counters, "errors", "timeouts", "format_errors"),
        "prompt_tokens": sum(len(turn.prompt_ids) for turn in turns),
        "sampled_tokens": trajectory.sampled_tokens,
        "seconds": trajectory.seconds,
        "env_s": counters.env_s,
        "void": trajectory.void,
    }


def transcript(trajectory: Trajectory, model: str, mode: Mode) -> dict[str, Any]:
    """All frames and turns of an episode for a reader, without token ids."""
    return {
        "model": model,
        "mode": mode,
        **_fields(trajectory, *_LABELS, "reward", "components"),
        "metrics": trajectory.metrics.model_dump() if trajectory.metrics else None,
        "counters": trajectory.counters.model_dump(),
        "void": trajectory.void,
        "seconds": round(trajectory.seconds, 3),
        "frames": [
            {
                **_fields(frame, "frame", "parent", "depth", "kind", "stop_reason"),
                "turns": [
                    {**_fields(t, "observation", "text", "finish"), "tokens": len(t.sampled_ids)}
                    for t in frame.turns
                ],
            }
            for _, frame in sorted(trajectory.frames.items())
        ],
    }


def voids(rows: Sequence[EpisodeRow]) -> dict[str, int]:
    """Number of void episodes by cause, the most frequent first.

    A cause is the reason without its details: `connection` of `connection: reset by peer`.
    """
    causes = Counter(row["void"].partition(":")[0] for row in rows if row["void"] is not None)
    return dict(causes.most_common())


def charge_surplus(
    before: Sequence[EpisodeRow], after: Sequence[EpisodeRow]
) -> Sequence[EpisodeRow]:
    """Rows of `after`, with 0 for its voids if it has more of them than `before`.

    If all are void, they stay without a score, since the environment was lost.
    """
    lost = sum(voids(after).values())
    if lost <= sum(voids(before).values()) or lost == len(after):
        return after
    return [row if row["void"] is None else row | _ZERO for row in after]


def _fields(record: object, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def paired(
    before: Sequence[EpisodeRow], after: Sequence[EpisodeRow], score: str
) -> tuple[list[float], list[float], list[str]]:
    """Scores of the same (problem, mode) in both, and their collections.

    A pair without a score on either side is left out: an infrastructure failure is not a score.
    """
    key = itemgetter("problem_id", "mode")
    scored = {key(row): row[score] for row in after if row[score] is not None}
    pairs = [
        (row[score], scored[key(row)], row["collection_id"])
        for row in before
        if row[score] is not None and key(row) in scored
    ]
    return [a for a, _, _ in pairs], [b for _, b, _ in pairs], [g for _, _, g in pairs]


@dataclass(frozen=True)
class Comparison:
    """Means of two models over the same pairs, and the paired difference."""

    before: float
    after: float
    difference: Interval


def compare(
    before: Sequence[EpisodeRow], after: Sequence[EpisodeRow], score: str, bootstrap: Bootstrap
) -> Comparison:
    """Compare a score of two models over their valid pairs; the interval is by collection.

    Raises:
        ValueError: no pair is free of voids.
    """
    first, second, collections = paired(before, after, score)
    if not first:
        raise ValueError(f"no pair of episodes has a {score} (all are void, or share no problem)")
    gains = [b - a for a, b in zip(first, second, strict=True)]
    return Comparison(
        sum(first) / len(first), sum(second) / len(second), bootstrap.mean(gains, collections)
    )


def mean(rows: Sequence[EpisodeRow], score: str) -> float | None:
    """Mean of a score over the rows that have it; None without such rows."""
    values = [row[score] for row in rows if row[score] is not None]
    return float(np.mean(values)) if values else None


def summary(rows: Sequence[EpisodeRow]) -> dict[str, Any]:
    """Scores, rates, stop reasons and tokens of one model's episodes.

    Scores are over the rows that have them, so voids count if they are charged. Stop reasons,
    counts and tokens are over episodes that are not void.
    """
    played = [row for row in rows if row["void"] is None]
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    stops = Counter(row["stop_reason"] or "none" for row in played)
    return {
        "episodes": len(rows),
        "reward_mean": mean(rows, "reward"),
        "reward_std": float(np.std(rewards)) if rewards else None,
        "components": {name: mean(rows, name) for name in COMPONENTS},
        **{name: mean(rows, name) for name in METRICS},
        "success_rate": mean(rows, "success"),
        "void_rate": 1 - len(played) / len(rows) if rows else None,
        "voids": voids(rows),
        "timeout_rate": float(np.mean([row["timeouts"] > 0 for row in played])) if played else None,
        "stop_reasons": {name: count / len(played) for name, count in sorted(stops.items())},
        **{name: mean(played, name) for name in ("turns", "sub_calls", "max_depth")},
        "tokens": {
            "sampled_per_episode": mean(played, "sampled_tokens"),
            "prompt_per_episode": mean(played, "prompt_tokens"),
        },
    }


def latency(seconds: Sequence[float]) -> dict[str, float | int | None]:
    """Median and 95th percentile of episode times, in seconds."""
    p50, p95 = np.quantile(seconds, [0.5, 0.95]).tolist() if seconds else (None, None)
    return {"p50_s": p50, "p95_s": p95, "episodes": len(seconds)}


def compare_models(
    rows: Mapping[str, Sequence[EpisodeRow]],
    alone: Mapping[str, Sequence[float]],
    bootstrap: Bootstrap,
) -> dict[str, Any]:
    """Comparison of `before` and `after`: the content of reports/evaluation.json.

    Args:
        rows: rows by model, `before` and `after`, with the same problems and modes.
        alone: seconds of episodes played one at a time, by model.
        bootstrap: method of the intervals.

    Raises:
        ValueError: no pair of episodes is free of voids.
    """
    before, after = rows["before"], _charged(rows["before"], rows["after"])
    reward = difference(before, after, "reward", "sampled", bootstrap)
    start = reward["before"]
    percent = 100 * reward["difference"] / start if start > 0 else None
    gain = f"{percent:.1f} %" if percent is not None else f"from 0 to {reward['after']:.3f}"
    return {
        "n": len({row["problem_id"] for row in before}),
        "collections": len({row["collection_id"] for row in before}),
        "improvement": f"Improvement: {gain}",
        "improvement_percent": percent,
        "intervals": f"95 %, {bootstrap.resamples} bootstrap resamples of collections of problems",
        "reward": reward,
        "reward_greedy": difference(before, after, "reward", "greedy", bootstrap),
        "primary_objective": difference(before, after, "primary_objective", "sampled", bootstrap),
        "f1_greedy": difference(before, after, "f1", "greedy", bootstrap),
        "f1_sampled": difference(before, after, "f1", "sampled", bootstrap),
        "voids_as_zero": sum(row["void"] is not None and row["reward"] == 0.0 for row in after),
        "before": describe(before, alone["before"], bootstrap),
        "after": describe(after, alone["after"], bootstrap),
    }


def _charged(before: Sequence[EpisodeRow], after: Sequence[EpisodeRow]) -> list[EpisodeRow]:
    """`charge_surplus` in each mode, because a model can void the episodes of one mode alone."""
    return [
        row
        for mode in dict.fromkeys(row["mode"] for row in after)
        for row in charge_surplus(
            *([row for row in side if row["mode"] == mode] for side in (before, after))
        )
    ]


def difference(
    before: Sequence[EpisodeRow],
    after: Sequence[EpisodeRow],
    score: str,
    mode: Mode,
    bootstrap: Bootstrap,
) -> dict[str, Any]:
    """Paired comparison of a score in one mode; the means are over the same pairs.

    Raises:
        ValueError: no pair is free of voids.
    """
    first, second = ([row for row in part if row["mode"] == mode] for part in (before, after))
    comparison = compare(first, second, score, bootstrap)
    return {
        "before": comparison.before,
        "after": comparison.after,
        "difference": comparison.difference.mean,
        "ci95": comparison.difference.bounds,
        "pairs": comparison.difference.n,
        "mode": mode,
    }


def describe(
    rows: Sequence[EpisodeRow], alone: Sequence[float], bootstrap: Bootstrap
) -> dict[str, Any]:
    """Report of one model: headline numbers, both modes, each tier and difficulty.

    `components`, `stop_reasons`, `tokens` and the success rate are of the sampled episodes.
    """
    sampled = [row for row in rows if row["mode"] == "sampled"]
    greedy = [row for row in rows if row["mode"] == "greedy"]
    of_sampled = summary(sampled)
    played = [row for row in sampled if row["void"] is None]
    return {
        **headline(rows, bootstrap),
        "reward_mean_greedy": mean(greedy, "reward"),
        "components": of_sampled["components"],
        "success_rate": of_sampled["success_rate"],
        "void_rate": summary(rows)["void_rate"],
        "voids": voids(rows),
        "stop_reasons": of_sampled["stop_reasons"],
        "tokens": of_sampled["tokens"],
        "latency": {
            "one_at_a_time": latency(alone),
            "batched": latency([row["seconds"] for row in played]),
        },
        "greedy": summary(greedy),
        "sampled": of_sampled,
        "tiers": by(rows, "tier", bootstrap),
        "difficulties": by(rows, "difficulty", bootstrap),
    }


def headline(rows: Sequence[EpisodeRow], bootstrap: Bootstrap) -> dict[str, Any]:
    """F1 in both modes and sampled reward, with intervals; None if all episodes are void."""
    figures: dict[str, Any] = {}
    for name, score, mode in (
        ("f1_greedy", "f1", "greedy"),
        ("f1_sampled", "f1", "sampled"),
        ("reward_mean", "reward", "sampled"),
    ):
        cases = [row for row in rows if row["mode"] == mode and row[score] is not None]
        values, collections = [row[score] for row in cases], [row["collection_id"] for row in cases]
        interval = bootstrap.mean(values, collections) if cases else None
        figures[name] = interval.mean if interval else None
        figures[f"{name}_ci95"] = interval.bounds if interval else None
    return figures


def by(rows: Sequence[EpisodeRow], column: str, bootstrap: Bootstrap) -> dict[str, Any]:
    """Headline numbers for each value of a column, in the order of the rows."""
    values = dict.fromkeys(row[column] for row in rows if row[column] is not None)
    parts = {value: [row for row in rows if row[column] == value] for value in values}
    return {
        value: {
            "n": len({row["problem_id"] for row in part}),
            **headline(part, bootstrap),
            "success_rate": mean([row for row in part if row["mode"] == "sampled"], "success"),
        }
        for value, part in parts.items()
    }
