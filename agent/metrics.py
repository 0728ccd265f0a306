"""What one training step is reported by: figures of its episodes, by name.

Pure. Names are `area/name`; `COLUMNS` says which column of `reports/train.parquet` each becomes.
The trainer's own figures (loss, entropy, gradient norm, ...) come from its log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from agent.trajectory import Trajectory

if TYPE_CHECKING:  # it would import the client, seconds long
    from agent.groups import Drawn

COMPONENTS = {
    "reward/primary": "primary_objective",
    "reward/process": "process_quality",
    "reward/format": "format_compliance",
    "reward/efficiency": "efficiency",
}

TRAINER = {
    "loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "grad_norm": "train/grad_norm",
    "entropy": "train/entropy",
    "kl": "train/reference_kl",
    "clip_ratio/region_mean": "train/clip_ratio",
    "cispo_clip_ratio": "train/clip_ratio",
    "ratio/deviation": "train/ratio_deviation",
    "parity/mean": "train/logprob_mismatch_mean",
    "parity/max": "train/logprob_mismatch_max",
    "step/kl": "train/step_kl",
    "step/scale": "train/step_scale",
    "groups/flat": "train/zero_variance_groups",
    "rows/all": "train/rows",
    "rows/forwarded": "train/rows_forwarded",
    "rows/cut": "train/rows_cut",
    "tokens/sampled": "train/sampled_tokens",
    "tokens/per_second": "train/tokens_per_second",
    "seconds/rollout": "train/rollout_seconds",
    "seconds/gradient": "train/gradient_seconds",
}
"""The trainer's names and ours."""

COLUMNS = {
    "reward/overall": "reward",
    **COMPONENTS,
    "curriculum/metric": "curriculum_metric",
    "curriculum/level": "level_index",
}
"""Columns that are not simply the name after the slash."""


def episode_metrics(trajectories: Sequence[Trajectory], success_at: float) -> dict[str, float]:
    """Means over the step's episodes; void ones count only in the void rate.

    Args:
        trajectories: all episodes of the step, replay included; at least one.
        success_at: primary_objective of a successful episode.
    """
    valid = [t for t in trajectories if t.void is None]
    found = {"episode/void_rate": 1 - len(valid) / len(trajectories)}
    if not valid:
        return found
    primary = [t.components.get("primary_objective", 0.0) for t in valid]
    found |= {
        "reward/overall": fmean(t.reward or 0.0 for t in valid),
        **{
            name: fmean(t.components.get(component, 0.0) for t in valid)
            for name, component in COMPONENTS.items()
        },
        "episode/f1": fmean(t.evidence.f1 if t.evidence else 0.0 for t in valid),
        "episode/exact_match": fmean(bool(t.evidence and t.evidence.exact_match) for t in valid),
        "episode/success_rate": fmean(
            t.answered and value >= success_at for t, value in zip(valid, primary, strict=True)
        ),
        "episode/truncated_rate": fmean(t.root.stop_reason == "truncated" for t in valid),
        "episode/timeout_rate": fmean(t.counters.timeouts > 0 for t in valid),
        "episode/turns": fmean(t.counters.turns for t in valid),
        "episode/sub_calls": fmean(t.counters.sub_calls for t in valid),
        "episode/frames": fmean(t.counters.frames for t in valid),
        "episode/depth": fmean(t.counters.max_depth for t in valid),
        "episode/errors": fmean(t.counters.errors for t in valid),
        "episode/tokens": fmean(
            sum(len(turn.sampled_ids) for frame in t.frames.values() for turn in frame.turns)
            for t in valid
        ),
    }
    return found


def trainer_metrics(logs: Mapping[str, float | None]) -> dict[str, float]:
    """The trainer's figures under our names; those it did not measure are left out."""
    return {
        ours: float(value)
        for theirs, ours in TRAINER.items()
        if (value := logs.get(theirs)) is not None
    }


def draw_metrics(drawn: Drawn) -> dict[str, float]:
    """What was played beyond a step's own episodes, and why."""
    return {
        "episode/replaced_voids": float(drawn.replaced_voids),
        "train/resampled_groups": float(drawn.resampled_groups),
        "train/extra_episodes": float(drawn.extra_episodes),
    }


def column(name: str) -> str:
    """The column of `reports/train.parquet` that a metric becomes."""
    return COLUMNS.get(name, name.rpartition("/")[2])
