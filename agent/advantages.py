"""Who is praised and blamed for what: weights and advantages of the frames of a tree.

Pure numpy. Advantages are group-relative; every descendant inherits its root's, times its weight.
With `inheritance: local`, an ablation, a child's own score is added to what it inherits.
`agent/batching.py` makes rows of them.

Source: the inheritance with 1/k is the weighting described in alphaXiv's "Reinforcing Recursive
Language Models"; batch scaling follows DAPO-style practice. Departures: `full`, `none`, `local`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agent.settings import TrainSettings
from agent.trajectory import FrameRecord, Trajectory

CUT = frozenset({"budget", "error", None})
"""Stop reasons of frames that something else ended; None: still open when the root ended.

`timeout` is not among them: environment seconds are spent by the code the policy wrote. Nor is
`truncated`: with `mask_truncated` the turn that ran into the token limit is left out, because it
is long and senseless and its tokens would outweigh all others; the turns before it, which led
there, are blamed.
"""


def valid_reward(trajectory: Trajectory) -> float | None:
    """The tree's reward; None for one that leaves its group."""
    if trajectory.void is not None or trajectory.reward is None:
        return None
    if not np.isfinite(trajectory.reward):
        return None
    return trajectory.reward


def sampled_anything(frame: FrameRecord) -> bool:
    """The policy wrote at least one token in this frame."""
    return any(turn.sampled_ids for turn in frame.turns)


def frame_weights(trajectory: Trajectory, inheritance: str) -> dict[int, float]:
    """Weight of each frame in the loss of its tree.

    The root has 1. A child has w(parent) / k with `inverse_count`, where k counts all frames
    its parent opened, over all its turns, that sampled anything (`llm` frames too); 1 with
    `full`; 0 with `none`. `local` weighs as `inverse_count`, so that the two differ in the
    advantages alone.
    """
    weights: dict[int, float] = {}
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


def has_signal(values: Sequence[float], settings: TrainSettings) -> bool:
    """At least two values, and they differ by more than `min_group_std`."""
    std = float(np.std(values)) if len(values) > 1 else 0.0
    return std > 0.0 and std >= settings.min_group_std


def relative_advantages(
    values_G: Sequence[Sequence[float | None]], settings: TrainSettings
) -> list[list[float]]:
    """Values less the mean of their group, over a deviation.

    Args:
        values_G: of each group; None has left its group.
        settings: `scale_rewards` says what they are divided by: the deviation of all the
            batch's values, of the group's, or nothing. Both are floored at `std_floor`, or one
            sub-call's efficiency would grow into a full advantage.

    Returns:
        The same shape; 0 for None and in groups without a signal.
    """
    valid = [value for group in values_G for value in group if value is not None]
    batch_std = float(np.std(valid)) if valid else 0.0
    advantages: list[list[float]] = []
    for group in values_G:
        kept = [value for value in group if value is not None]
        if not has_signal(kept, settings):
            advantages.append([0.0] * len(group))
            continue
        std = float(np.std(kept))
        scale = {"batch": batch_std, "group": std, "none": 1.0}[settings.scale_rewards]
        scale = max(scale, settings.std_floor)
        mean = float(np.mean(kept))
        advantages.append([0.0 if v is None else (v - mean) / scale for v in group])
    return advantages


def own_advantages(
    groups: Sequence[Sequence[Trajectory]], settings: TrainSettings
) -> list[list[dict[int, float]]]:
    """What each child's own answer is worth beside those of its group: `inheritance: local`.

    A child's score is the span F1 of its answer on the texts it was given, as the server says
    when the episode is done; 0 when it gave no answer. Scores are compared among all children of
    all trees of a problem, with the limits and the scaling of rewards. `llm` frames have no
    score, and a child that something else ended has none either: both only inherit.

    Returns:
        For each tree, frame -> advantage; frames without a score and whole void trees are absent.
    """
    scored: list[list[tuple[int, int, float]]] = []  # of a group: tree, frame, score
    for group in groups:
        scored.append(
            [
                (place, number, tree.frame_scores.get(number, 0.0))
                for place, tree in enumerate(group)
                if valid_reward(tree) is not None
                for number, frame in sorted(tree.frames.items())
                if frame.parent is not None
                and frame.kind == "rlm"
                and frame.stop_reason not in CUT
                and sampled_anything(frame)
            ]
        )
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
    """The same advantages dealt out at random among the valid trees: a negative control."""
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
