"""Credit assignment: weights and advantages of the frames of a tree.

Pure numpy. Advantages are relative to the group. Each descendant inherits its root's advantage,
and its weight scales its loss. With `inheritance: local`, an ablation, the advantage of a child's
own score is added. `batching.py` makes rows of them.

Source: the weighting by 1/k is described in alphaXiv's "Reinforcing Recursive Language Models";
batch scaling follows DAPO. Departures: `full`, `none`, `local`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agent.rollouts.trajectory import FrameRecord, Trajectory
from agent.settings import TrainSettings

CUT = frozenset({"budget", "error", None})
"""Stop reasons of frames that were ended from outside; None: open when the root ended.

`timeout` is not included, because the policy's own code spends the environment's seconds. Neither
is `truncated`: a turn that repeats a token until its limit is to become rare, unless
`mask_truncated` excludes it. `overspent` is not included either: the tree's own tokens ended it,
and its frames are to learn to spend less.
"""


def valid_reward(trajectory: Trajectory) -> float | None:
    """Reward of a tree; None if it is excluded from its group (void, missing, not finite)."""
    reward = trajectory.reward
    excluded = trajectory.void is not None or reward is None or not np.isfinite(reward)
    return None if excluded else reward


def sampled_anything(frame: FrameRecord) -> bool:
    """Whether the policy sampled at least one token in this frame."""
    return any(turn.sampled_ids for turn in frame.turns)


def frame_weights(trajectory: Trajectory, inheritance: str) -> dict[int, float]:
    """Weight of each frame in the loss of its tree.

    The root has 1. A child has w(parent) / k with `inverse_count`, 1 with `full`, 0 with `none`.
    The parent opened k frames with sampled tokens in all its turns, `llm` frames included. `local`
    has the weights of `inverse_count` and differs only in the advantages.
    """
    weights: dict[int, float] = {}
    # By depth, so that a parent's weight is known before its children's.
    for number in sorted(trajectory.frames, key=lambda n: trajectory.frames[n].depth):
        parent = trajectory.frames[number].parent
        if parent is None or inheritance == "full":
            weights[number] = 1.0
        elif inheritance == "none":
            weights[number] = 0.0
        else:
            k = sum(sampled_anything(child) for child in trajectory.children(parent))
            weights[number] = weights[parent] / max(k, 1)
    return weights


def has_signal(values_G: Sequence[float | None], settings: TrainSettings) -> bool:
    """Whether a group has two values or more with a deviation of at least `min_group_std`."""
    values = [value for value in values_G if value is not None]
    std = float(np.std(values)) if len(values) > 1 else 0.0
    return std > 0.0 and std >= settings.min_group_std


def relative_advantages(
    values_G: Sequence[Sequence[float | None]], settings: TrainSettings
) -> list[list[float]]:
    """(value - mean of its group) / scale.

    Args:
        values_G: values of each group; None is excluded from its group.
        settings: `scale_rewards` is the scope of the scale: the standard deviation of all values
            of the batch, that of the group, or 1. The scale is at least `std_floor`; otherwise
            the efficiency of a single sub-call could become a full advantage.

    Returns:
        Advantages in the shape of `values_G`; 0 for None and in groups without a signal.
    """
    valid = [value for group in values_G for value in group if value is not None]
    batch_std = float(np.std(valid)) if valid else 0.0
    advantages: list[list[float]] = []
    for group in values_G:
        if not has_signal(group, settings):
            advantages.append([0.0] * len(group))
            continue
        kept = [value for value in group if value is not None]
        std = float(np.std(kept))
        scale = {"batch": batch_std, "group": std, "none": 1.0}[settings.scale_rewards]
        scale = max(scale, settings.std_floor)
        mean = float(np.mean(kept))
        advantages.append([0.0 if v is None else (v - mean) / scale for v in group])
    return advantages


def own_advantages(
    groups: Sequence[Sequence[Trajectory]], settings: TrainSettings
) -> list[list[dict[int, float]]]:
    """Advantages of the children's own scores in their group, for `inheritance: local`.

    A child's score is the span F1 of its answer on its own texts, which the server reports at the
    end. It is 0 without an answer. Scores are relative to all children of all trees of a problem,
    with the limits and the scaling of rewards. `llm` frames, frames that were ended from outside
    and children that were given no text have no score and only inherit.

    Returns:
        Frame -> advantage for each tree; frames without a score are absent, as are void trees.
    """
    scored = [  # (index of the tree, frame, score) of each group's children
        [
            (place, number, tree.frame_scores.get(number, 0.0))
            for place, tree in enumerate(group)
            if valid_reward(tree) is not None
            for number, frame in sorted(tree.frames.items())
            if frame.parent is not None
            and frame.kind == "rlm"
            and frame.stop_reason not in CUT
            and (number in tree.frame_scores or frame.stop_reason != "final")
            and sampled_anything(frame)
        ]
        for group in groups
    ]
    relative = relative_advantages([[score for _, _, score in group] for group in scored], settings)
    own: list[list[dict[int, float]]] = [[{} for _ in group] for group in groups]
    for trees, frames, values in zip(own, scored, relative, strict=True):
        for (place, number, _), value in zip(frames, values, strict=True):
            trees[place][number] = value
    return own


def shuffle_advantages(
    advantages_G: Sequence[Sequence[float]],
    rewards_G: Sequence[Sequence[float | None]],
    rng: np.random.Generator,
) -> list[list[float]]:
    """Permute the advantages among the valid trees: a negative control."""
    places = [
        (g, i)
        for g, group in enumerate(rewards_G)
        for i, reward in enumerate(group)
        if reward is not None
    ]
    shuffled = [list(group) for group in advantages_G]
    for (g, i), source in zip(places, rng.permutation(len(places)), strict=True):
        from_g, from_i = places[int(source)]
        shuffled[g][i] = advantages_G[from_g][from_i]
    return shuffled
