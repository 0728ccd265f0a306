"""What evaluation says: a row for each episode, paired comparisons, the report.

Pure functions of trajectories and rows; plays nothing and loads no model (`tasks/evaluate.py`
does). Intervals come from `agent/statistics.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from agent.statistics import Bootstrap, Interval, wilson
from agent.trajectory import Trajectory
from env.models import Evidence
from rewards.combine import COMPONENTS

Mode = Literal["greedy", "sampled"]
Row = dict[str, Any]
"""One episode, as `episode_row` makes it; void ones have None for every score."""

METRICS = tuple(Evidence.model_fields)
"""Agreement with gold, beside the reward; `canary` is None where no paper is one."""
SCORES = ("reward", *COMPONENTS, *METRICS)
JUDGED = ("judge", "judge_precision", "judge_recall", "judge_missing")
"""Columns of the episodes that an LLM judged: three numbers, or why there are none."""


def episode_row(trajectory: Trajectory, model: str, mode: Mode, pass_: int, at: float) -> Row:
    """One episode as a flat row.

    Args:
        trajectory: the record.
        model: `before` or `after`, or any other name.
        mode: how its turns were decoded.
        pass_: number of the sampling pass; pairs are matched on it.
        at: primary_objective of a successful episode (`rewards.success_at`).
    """
    turns = [turn for frame in trajectory.frames.values() for turn in frame.turns]
    evidence, counters = trajectory.evidence, trajectory.counters
    played = trajectory.void is None
    scores: Row = {
        "reward": trajectory.reward,
        **{name: trajectory.components.get(name) for name in COMPONENTS},
        **(evidence.model_dump() if evidence else dict.fromkeys(METRICS)),
    }
    primary = trajectory.components.get("primary_objective", 0.0)
    return {
        "model": model,
        "mode": mode,
        "pass": pass_,
        "problem_id": trajectory.problem_id,
        "group_id": trajectory.group_id,
        "difficulty": trajectory.difficulty,
        "tier": trajectory.tier,
        **(scores if played else dict.fromkeys(SCORES)),
        "success": bool(trajectory.answered and primary >= at) if played else None,
        "stop_reason": trajectory.root.stop_reason if trajectory.frames else None,
        "turns": counters.turns,
        "sub_calls": counters.sub_calls,
        "frames": counters.frames,
        "max_depth": counters.max_depth,
        "errors": counters.errors,
        "timeouts": counters.timeouts,
        "format_errors": counters.format_errors,
        "prompt_tokens": sum(len(turn.prompt_ids) for turn in turns),
        "sampled_tokens": sum(len(turn.sampled_ids) for turn in turns),
        "seconds": trajectory.seconds,
        "env_s": counters.env_s,
        "void": trajectory.void,
        **dict.fromkeys(JUDGED),
    }


def transcript(trajectory: Trajectory, model: str, mode: Mode) -> dict[str, Any]:
    """The whole episode for a reader: every frame and turn, without token ids."""
    return {
        "model": model,
        "mode": mode,
        "problem_id": trajectory.problem_id,
        "group_id": trajectory.group_id,
        "difficulty": trajectory.difficulty,
        "tier": trajectory.tier,
        "reward": trajectory.reward,
        "components": trajectory.components,
        "evidence": trajectory.evidence.model_dump() if trajectory.evidence else None,
        "counters": trajectory.counters.model_dump(),
        "void": trajectory.void,
        "seconds": round(trajectory.seconds, 3),
        "frames": [
            {
                "frame": frame.frame,
                "parent": frame.parent,
                "depth": frame.depth,
                "kind": frame.kind,
                "stop_reason": frame.stop_reason,
                "score": trajectory.frame_scores.get(frame.frame),
                "turns": [
                    {
                        "observation": turn.observation,
                        "text": turn.text,
                        "finish": turn.finish,
                        "tokens": len(turn.sampled_ids),
                    }
                    for turn in frame.turns
                ],
            }
            for frame in sorted(trajectory.frames.values(), key=lambda record: record.frame)
        ],
    }


def paired(
    before: Sequence[Row], after: Sequence[Row], score: str
) -> tuple[list[float], list[float], list[str]]:
    """Scores of the same (problem, mode, pass) in both, and their groups.

    A pair with a void on either side is left out: an infrastructure failure is no score of 0.
    """
    key = ("problem_id", "mode", "pass")
    other = {tuple(row[k] for k in key): row for row in after}
    pairs = [(row, other.get(tuple(row[k] for k in key))) for row in before]
    kept = [
        (first[score], second[score], first["group_id"])
        for first, second in pairs
        if second is not None and first[score] is not None and second[score] is not None
    ]
    return [a for a, _, _ in kept], [b for _, b, _ in kept], [g for _, _, g in kept]


@dataclass(frozen=True)
class Comparison:
    """Means of both models over the same pairs, and the paired difference."""

    before: float
    after: float
    difference: Interval


def compare(
    before: Sequence[Row], after: Sequence[Row], score: str, bootstrap: Bootstrap
) -> Comparison:
    """One score of two models over the pairs that both played; the interval is by group.

    Raises:
        ValueError: no pair without a void.
    """
    first, second, groups = paired(before, after, score)
    if not first:
        raise ValueError(f"no pair of episodes with a {score}: all void, or no common problem")
    gains = [b - a for a, b in zip(first, second, strict=True)]
    return Comparison(
        sum(first) / len(first), sum(second) / len(second), bootstrap.mean(gains, groups)
    )


def mean(rows: Sequence[Row], score: str) -> float | None:
    """Mean of a score over the rows that have one; None without any."""
    values = [row[score] for row in rows if row[score] is not None]
    return float(np.mean(values)) if values else None


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """What evaluation says of one model in one mode: scores, rates, stops, tokens.

    Scores are over episodes that are not void; rates of stopping over all that ended.
    """
    played = [row for row in rows if row["void"] is None]
    stops = Counter(row["stop_reason"] or "none" for row in played)
    return {
        "episodes": len(rows),
        "reward_mean": mean(rows, "reward"),
        "reward_std": float(np.std([row["reward"] for row in played])) if played else None,
        "components": {name: mean(rows, name) for name in COMPONENTS},
        "precision": mean(rows, "precision"),
        "recall": mean(rows, "recall"),
        "f1": mean(rows, "f1"),
        "exact_match": mean(rows, "exact_match"),
        "paper_f1": mean(rows, "paper_f1"),
        "canary_rate": mean(rows, "canary"),
        "success_rate": mean(rows, "success"),
        "void_rate": 1 - len(played) / len(rows) if rows else None,
        "timeout_rate": float(np.mean([row["timeouts"] > 0 for row in played])) if played else None,
        "stop_reasons": {name: count / len(played) for name, count in sorted(stops.items())},
        "turns": mean(played, "turns"),
        "sub_calls": mean(played, "sub_calls"),
        "max_depth": mean(played, "max_depth"),
        "tokens": {
            "sampled_per_episode": mean(played, "sampled_tokens"),
            "prompt_per_episode": mean(played, "prompt_tokens"),
        },
    }


def latency(seconds: Sequence[float]) -> dict[str, float | int | None]:
    """Median and 95th percentile of episode times, in seconds."""
    if not len(seconds):
        return {"p50_s": None, "p95_s": None, "episodes": 0}
    p50, p95 = np.quantile(np.asarray(seconds, dtype=float), [0.5, 0.95])
    return {"p50_s": float(p50), "p95_s": float(p95), "episodes": len(seconds)}


def report(
    rows: Mapping[str, Sequence[Row]], alone: Mapping[str, Sequence[float]], bootstrap: Bootstrap
) -> dict[str, Any]:
    """The comparison of `before` and `after`: the content of reports/evaluation.json.

    Args:
        rows: by model, `before` and `after`; the same problems, modes and passes in both.
        alone: by model, seconds of episodes that were played one at a time.
        bootstrap: how intervals are made.

    Raises:
        ValueError: no pair of episodes without a void.
    """
    before, after = rows["before"], rows["after"]
    reward = difference(before, after, "reward", "sampled", bootstrap)
    start = reward["before"]
    percent = 100 * reward["difference"] / start if start > 0 else None
    gain = f"{percent:.1f} %" if percent is not None else f"from 0 to {reward['after']:.3f}"
    return {
        "n": len({row["problem_id"] for row in before}),
        "groups": len({row["group_id"] for row in before}),
        "improvement": f"Improvement: {gain}",
        "improvement_percent": percent,
        "intervals": f"95 %, {bootstrap.resamples} bootstrap resamples of groups of problems "
        "(rates: Wilson)",
        "reward": reward,
        "reward_greedy": difference(before, after, "reward", "greedy", bootstrap),
        "primary_objective": difference(before, after, "primary_objective", "sampled", bootstrap),
        "f1_greedy": difference(before, after, "f1", "greedy", bootstrap),
        "f1_sampled": difference(before, after, "f1", "sampled", bootstrap),
        **{name: describe(rows[name], alone[name], bootstrap) for name in ("before", "after")},
    }


def difference(
    before: Sequence[Row], after: Sequence[Row], score: str, mode: Mode, bootstrap: Bootstrap
) -> dict[str, Any]:
    """The paired comparison of one score in one mode; the means are over the same pairs.

    Raises:
        ValueError: no pair without a void.
    """
    first, second = ([row for row in part if row["mode"] == mode] for part in (before, after))
    found = compare(first, second, score, bootstrap)
    return {
        "before": found.before,
        "after": found.after,
        "difference": found.difference.mean,
        "ci95": found.difference.bounds,
        "pairs": found.difference.n,
        "mode": mode,
    }


def describe(rows: Sequence[Row], alone: Sequence[float], bootstrap: Bootstrap) -> dict[str, Any]:
    """One model: headline numbers, both modes in full, and each tier and difficulty.

    `components`, rates, stop reasons and tokens at this level are of the sampled episodes.
    """
    sampled = [row for row in rows if row["mode"] == "sampled"]
    of_sampled = summary(sampled)
    played = [row for row in sampled if row["void"] is None]
    success = wilson(sum(row["success"] for row in played), len(played)) if played else None
    return {
        **headline(rows, bootstrap),
        "reward_mean_greedy": mean([row for row in rows if row["mode"] == "greedy"], "reward"),
        "reward_mean_by_pass": [
            mean([row for row in sampled if row["pass"] == number], "reward")
            for number in sorted({row["pass"] for row in sampled})
        ],
        "components": of_sampled["components"],
        "success_rate": of_sampled["success_rate"],
        "success_rate_ci95": success.bounds if success else None,
        "void_rate": summary(rows)["void_rate"],
        "stop_reasons": of_sampled["stop_reasons"],
        "tokens": of_sampled["tokens"],
        "latency": {
            "one_at_a_time": latency(alone),
            "batched": latency([row["seconds"] for row in played]),
        },
        "greedy": summary([row for row in rows if row["mode"] == "greedy"]),
        "sampled": of_sampled,
        "tiers": by(rows, "tier", bootstrap),
        "difficulties": by(rows, "difficulty", bootstrap),
    }


def headline(rows: Sequence[Row], bootstrap: Bootstrap) -> dict[str, Any]:
    """F1 in both modes and the sampled reward, with intervals by group; None where all are void."""
    found: dict[str, Any] = {}
    for name, score, mode in (
        ("f1_greedy", "f1", "greedy"),
        ("f1_sampled", "f1", "sampled"),
        ("reward_mean", "reward", "sampled"),
    ):
        kept = [row for row in rows if row["mode"] == mode and row[score] is not None]
        values, groups = [row[score] for row in kept], [row["group_id"] for row in kept]
        interval = bootstrap.mean(values, groups) if kept else None
        found[name] = interval.mean if interval else None
        found[f"{name}_ci95"] = interval.bounds if interval else None
    return found


def by(rows: Sequence[Row], column: str, bootstrap: Bootstrap) -> dict[str, Any]:
    """Headline numbers for each value of a column, in the order the rows bring them."""
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


def judge_report(rows: Mapping[str, Sequence[Row]], bootstrap: Bootstrap) -> dict[str, Any]:
    """What a judge made of the greedy episodes it was asked about; an audit, and no reward.

    Missing verdicts are in no mean; how many there are, and why, stands beside it.
    """
    told: dict[str, Any] = {"score": "(precision + recall) / 2 of greedy episodes"}
    for model in ("before", "after"):
        judged = [row for row in rows[model] if row["judge"] is not None]
        missing = Counter(row["judge_missing"] for row in rows[model] if row["judge_missing"])
        groups = [row["group_id"] for row in judged]
        interval = bootstrap.mean([row["judge"] for row in judged], groups) if judged else None
        told[model] = {
            "judged": len(judged),
            "missing": missing.total(),
            "reasons": dict(missing.most_common()),
            "mean": interval.mean if interval else None,
            "ci95": interval.bounds if interval else None,
            "precision": mean(judged, "judge_precision"),
            "recall": mean(judged, "judge_recall"),
        }
    pairs = paired(rows["before"], rows["after"], "judge")[0]
    told["paired"] = (
        difference(rows["before"], rows["after"], "judge", "greedy", bootstrap) if pairs else None
    )
    return told
