"""Credit assignment: weights and advantages of the frames of a tree.

Pure numpy. A root's advantage is relative to its group. Each descendant inherits it, and its weight
scales its loss. `batching.py` makes rows of them.

Source: the weighting by 1/k is described in alphaXiv's "Reinforcing Recursive Language Models";
batch scaling follows DAPO.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from agent.rollouts.trajectory import FrameRecord, Trajectory
from agent.settings import TrainSettings

STD_FLOOR = 0.05
"""Least divisor of advantages."""
CUT = frozenset({"budget", "error", None})
"""Stop reasons of frames that were ended from outside; None: open when the root ended.

`timeout` is not included, because the policy's own code spends the environment's seconds. Neither
is `truncated`: a turn that repeats a token until its limit is to become rare. `overspent` is not
included either: the tree's own tokens ended it, and its frames are to learn to spend less.
"""


def valid_reward(trajectory: Trajectory) -> float | None:
    """Reward of a tree; None if it is excluded from its group (void, missing, not finite)."""
    reward = trajectory.reward
    excluded = trajectory.void is not None or reward is None or not np.isfinite(reward)
    return None if excluded else reward


def sampled_anything(frame: FrameRecord) -> bool:
    """Whether the policy sampled at least one token in this frame."""
    return any(turn.sampled_ids for turn in frame.turns)


def frame_weights(trajectory: Trajectory) -> dict[int, float]:
    """Weight of each frame in the loss of its tree.

    The root has 1, a child w(parent) / k: its parent opened k frames with sampled tokens in all
    its turns, `llm` frames included.
    """
    counts = Counter(f.parent for f in trajectory.frames.values() if sampled_anything(f))
    weights: dict[int, float] = {}
    for number, frame in sorted(trajectory.frames.items()):  # a parent's number is below
        parent = frame.parent
        weights[number] = 1.0 if parent is None else weights[parent] / max(counts[parent], 1)
    return weights


def has_signal(values_G: Sequence[float | None], settings: TrainSettings) -> bool:
    """Whether a group has two values or more with a deviation of at least `min_group_std`."""
    std = _deviation(values_G)
    return std > 0.0 and std >= settings.min_group_std


def relative_advantages(
    values_G: Sequence[Sequence[float | None]], settings: TrainSettings
) -> list[list[float]]:
    """(value - mean of its group) / scale.

    Args:
        values_G: values of each group; None is excluded from its group.
        settings: `scale_rewards` is the scope of the scale: the standard deviation of all values
            of the batch, that of the group, or 1. The scale is at least `STD_FLOOR`; otherwise
            the efficiency of a single sub-call could become a full advantage.

    Returns:
        Advantages in the shape of `values_G`; 0 for None and in groups without a signal.
    """
    batch = _deviation(chain.from_iterable(values_G))
    advantages = []
    for group in values_G:
        if not has_signal(group, settings):
            advantages.append([0.0] * len(group))
            continue
        mean = float(np.mean([value for value in group if value is not None]))
        scales = {"batch": batch, "group": _deviation(group), "none": 1.0}
        scale = max(scales[settings.scale_rewards], STD_FLOOR)
        advantages.append([0.0 if v is None else (v - mean) / scale for v in group])
    return advantages


def _deviation(values: Iterable[float | None]) -> float:
    sample = [value for value in values if value is not None]
    return float(np.std(sample)) if sample else 0.0
