"""Metrics of a training step, by name.

Pure. Names are `area/name`, in MLflow and as columns of `reports/train.parquet`. Loss, gradient
norm and others come from the trainer's log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from agent.rollouts.trajectory import Trajectory
from rewards.combine import COMPONENTS
from rewards.settings import reward_metric

if TYPE_CHECKING:  # it imports the client, which takes seconds
    from agent.training.batching import Rows
    from agent.training.groups import Drawn

TRL = {"loss": "train/loss", "learning_rate": "train/learning_rate", "grad_norm": "train/grad_norm"}
"""Our names by TRL's; figures that `trainer.py` adds have our names from the start."""


def episode_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Means over a step's episodes; voids count only in the void rate.

    Args:
        trajectories: all episodes of the step, replayed levels included; at least one.
    """
    valid = [t for t in trajectories if t.void is None]
    metrics = {"episode/void_rate": 1 - len(valid) / len(trajectories)}
    if not valid:
        return metrics
    return metrics | {
        "reward/overall": fmean(t.reward or 0.0 for t in valid),
        **{
            reward_metric(name): fmean(t.components.get(name, 0.0) for t in valid)
            for name in COMPONENTS
        },
        "episode/f1": fmean(t.metrics.f1 if t.metrics else 0.0 for t in valid),
        "episode/exact_match": fmean(bool(t.metrics and t.metrics.exact_match) for t in valid),
        "episode/success_rate": fmean(t.succeeded for t in valid),
        "episode/truncated_rate": fmean(t.root.stop_reason == "truncated" for t in valid),
        "episode/timeout_rate": fmean(t.counters.timeouts > 0 for t in valid),
        "episode/turns": fmean(t.counters.turns for t in valid),
        "episode/sub_calls": fmean(t.counters.sub_calls for t in valid),
        "episode/frames": fmean(t.counters.frames for t in valid),
        "episode/depth": fmean(t.counters.max_depth for t in valid),
        "episode/errors": fmean(t.counters.errors for t in valid),
        "episode/tokens": fmean(t.sampled_tokens for t in valid),
    }


def rollout_metrics(rows: Rows, trees: Sequence[Trajectory], seconds: float) -> dict[str, float]:
    """Figures of a step's rows for the loss, and of the speed of its episodes.

    Args:
        rows: conversations of the step's episodes.
        trees: all episodes of the step.
        seconds: time to play them.
    """
    sampled = sum(tree.sampled_tokens for tree in trees)
    return {
        "train/rows": len(rows.rows),
        "train/rows_cut": rows.count("cut"),
        "train/zero_variance_groups": rows.flat_groups,
        "train/sampled_tokens": sampled,
        "train/tokens_per_second": sampled / max(seconds, 1e-9),
        "train/rollout_seconds": seconds,
    }


def trainer_metrics(logs: Mapping[str, float | None]) -> dict[str, float]:
    """Metrics of the trainer under our names; unmeasured ones are left out."""
    return {
        TRL.get(name, name): float(value)
        for name, value in logs.items()
        if value is not None and (name in TRL or name.startswith("train/"))
    }


def draw_metrics(drawn: Drawn) -> dict[str, float]:
    """Counts of episodes played beyond a step's own, and of groups without a signal.

    Groups are too hard if no valid episode succeeded, and too easy if all did. They are the step's
    own, so that those exchanged count too: with groups of equal rewards in between, they are
    `train/zero_variance_groups` + `train/resampled_groups`.

    Args:
        drawn: the step's episodes.
    """
    outcomes = [{t.succeeded for t in group if t.void is None} for group in drawn.flat_groups]
    return {
        "train/too_hard_groups": float(outcomes.count({False})),
        "train/too_easy_groups": float(outcomes.count({True})),
        "episode/replaced_voids": float(drawn.replaced_voids),
        "episode/charged_voids": float(drawn.charged_voids),
        "train/resampled_groups": float(drawn.resampled_groups),
        "train/extra_episodes": float(drawn.extra_episodes),
    }
