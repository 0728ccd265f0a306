"""From groups of trajectories to rows for the loss: one row a frame.

Pure logic on numpy arrays; no torch. A row is a frame's whole conversation as token ids, with
1s where the policy sampled, the frame's weight in its tree and the advantage its root earned.
Advantages are group-relative; every descendant inherits its root's, times its weight. The loss
of a row is multiplied as a whole by its weight, and the batch is normalised by the sum of
weight x mask (`Rows.normaliser`), so how the rows are cut into micro-batches changes nothing.

Source: the inheritance with 1/k is the weighting described in alphaXiv's "Reinforcing Recursive
Language Models"; batch scaling and clip-higher follow DAPO-style practice. Departures: `full`
and `none`, and min(advantage, 0) for children that gave no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agent.settings import TrainSettings
from agent.trajectory import FrameRecord, Trajectory

Fate = Literal["trained", "void", "cut"]
"""`void`: an infrastructure failure in its tree. `cut`: a budget ended it, or a token limit its
only turn."""

CUT = frozenset({"budget", "error", None})
"""Stop reasons of frames that something else ended; None: still open when the root ended.

`timeout` is not among them: environment seconds are spent by the code the policy wrote. Nor is
`truncated`: with `mask_truncated` the turn that ran into the token limit is left out, because it
is long and senseless and its tokens would outweigh all others; the turns before it, which led
there, are blamed.
"""


@dataclass(frozen=True)
class Row:
    """One frame as the loss sees it. T: tokens of its conversation."""

    tree: int
    """Index of its episode in the step, over all groups."""
    frame: int
    ids_T: NDArray[np.int64]
    env_mask_T: NDArray[np.bool_]
    """True on tokens the policy sampled, but not on those of a masked truncated turn."""
    logprobs_T: NDArray[np.float32]
    """Log-probabilities at sampling time; 0 where nothing was sampled."""
    weight: float
    """Of the whole token loss; 0 takes the row out of the loss: void, cut, or not inherited."""
    advantage: float
    fate: Fate

    @property
    def tokens(self) -> int:
        """Sampled tokens that count in the loss."""
        return int(self.env_mask_T.sum())

    @property
    def has_gradient(self) -> bool:
        """False when the row can only add zeros to the gradient."""
        return self.weight > 0 and self.advantage != 0


@dataclass(frozen=True)
class Rows:
    """All rows of a step, with what the metrics say about the groups."""

    rows: list[Row]
    groups: int
    flat_groups: int
    """Groups without a signal: deviation below the limit, or fewer than two valid trees."""

    @property
    def normaliser(self) -> float:
        """Sum of weight x mask over the step."""
        return float(sum(row.weight * row.tokens for row in self.rows))

    def count(self, fate: Fate) -> int:
        """Rows of one fate."""
        return sum(row.fate == fate for row in self.rows)


@dataclass(frozen=True)
class MicroBatch:
    """Rows of one forward and backward pass, padded on the right. B rows, T longest."""

    ids_B_T: NDArray[np.int64]
    attention_B_T: NDArray[np.int64]
    env_mask_B_T: NDArray[np.bool_]
    logprobs_B_T: NDArray[np.float32]
    weights_B: NDArray[np.float32]
    advantages_B: NDArray[np.float32]
    context: int
    """Leading columns in which no row has a sampled token; at least 1."""


def frame_weights(trajectory: Trajectory, inheritance: str) -> dict[int, float]:
    """Weight of each frame in the loss of its tree.

    The root has 1. A child has w(parent) / k with `inverse_count`, where k counts all frames
    its parent opened, over all its turns, that sampled anything (`llm` frames too); 1 with
    `full`; 0 with `none`.
    """
    weights: dict[int, float] = {}
    for number in sorted(trajectory.frames, key=lambda n: trajectory.frames[n].depth):
        parent = trajectory.frames[number].parent
        if parent is None or inheritance == "full":
            weights[number] = 1.0
        elif inheritance == "none":
            weights[number] = 0.0
        else:
            k = sum(_sampled(child) for child in trajectory.children(parent))
            weights[number] = weights[parent] / max(k, 1)
    return weights


def tree_advantages(
    rewards_G: Sequence[Sequence[float | None]], settings: TrainSettings
) -> tuple[list[list[float]], int]:
    """Group-relative advantages, and how many groups have no signal.

    Args:
        rewards_G: rewards of each group's trees; None is void and leaves its group.
        settings: `scale_rewards` says what they are divided by: the deviation of all the
            batch's rewards, of the group's, or nothing. Both are floored at `std_floor`, or one
            sub-call's efficiency would grow into a full advantage.

    Returns:
        Advantages in the same shape (0 for void trees and in flat groups), flat groups.
    """
    valid = [reward for group in rewards_G for reward in group if reward is not None]
    batch_std = float(np.std(valid)) if valid else 0.0
    advantages: list[list[float]] = []
    flat = 0
    for group in rewards_G:
        kept = [reward for reward in group if reward is not None]
        std = float(np.std(kept)) if kept else 0.0
        if len(kept) < 2 or std == 0.0 or std < settings.min_group_std:
            flat += 1
            advantages.append([0.0] * len(group))
            continue
        scale = {"batch": batch_std, "group": std, "none": 1.0}[settings.scale_rewards]
        scale = max(scale, settings.std_floor)
        mean = float(np.mean(kept))
        advantages.append([0.0 if r is None else (r - mean) / scale for r in group])
    return advantages, flat


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


def make_rows(
    groups: Sequence[Sequence[Trajectory]], settings: TrainSettings, rng: np.random.Generator
) -> Rows:
    """All rows of one step.

    Args:
        groups: the trees of each problem.
        settings: inheritance, scaling, limits, control.
        rng: used by the control `shuffled_advantages` only.
    """
    rewards_G = [[_reward(tree) for tree in group] for group in groups]
    advantages, flat = tree_advantages(rewards_G, settings)
    if settings.control == "shuffled_advantages":
        advantages = shuffle_advantages(advantages, rewards_G, rng)
    trees = [tree for group in groups for tree in group]
    dealt = [advantage for group in advantages for advantage in group]
    rows = [
        row
        for index, (tree, advantage) in enumerate(zip(trees, dealt, strict=True))
        for row in _tree_rows(index, tree, advantage, settings)
    ]
    return Rows(rows=rows, groups=len(groups), flat_groups=flat)


def micro_batches(rows: Sequence[Row], most_rows: int, pad_id: int) -> list[MicroBatch]:
    """Rows of similar length together, at most `most_rows` in each; none is dropped."""
    ordered = sorted(rows, key=lambda row: len(row.ids_T))
    return [
        _pad(ordered[start : start + most_rows], pad_id)
        for start in range(0, len(ordered), most_rows)
    ]


def _reward(trajectory: Trajectory) -> float | None:
    """The tree's reward; None for one that leaves its group."""
    if trajectory.void is not None or trajectory.reward is None:
        return None
    if not np.isfinite(trajectory.reward):
        return None
    return trajectory.reward


def _sampled(frame: FrameRecord) -> bool:
    return any(turn.sampled_ids for turn in frame.turns)


def _tree_rows(
    index: int, trajectory: Trajectory, advantage: float, settings: TrainSettings
) -> list[Row]:
    void = _reward(trajectory) is None
    weights = frame_weights(trajectory, settings.inheritance)
    rows = []
    for number, frame in sorted(trajectory.frames.items()):
        if not _sampled(frame):
            continue
        row = _frame_row(index, frame, settings.mask_truncated)
        is_cut = frame.stop_reason in CUT or not row.tokens
        fate: Fate = "void" if void else "cut" if is_cut else "trained"
        mine = advantage
        if frame.parent is not None and frame.stop_reason != "final":
            mine = min(mine, 0.0)
        rows.append(
            replace(
                row,
                weight=weights[number] if fate == "trained" else 0.0,
                advantage=mine,
                fate=fate,
            )
        )
    return rows


def _frame_row(tree: int, frame: FrameRecord, mask_truncated: bool) -> Row:
    """A frame's tokens, turn after turn; those of a truncated turn may be masked.

    Raises:
        ValueError: tokens and log-probabilities do not match, or a turn sampled without ever
            having read anything.
    """
    ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    for number, turn in enumerate(frame.turns):
        where = f"episode {tree}, frame {frame.frame}, turn {number}"
        if len(turn.sampled_ids) != len(turn.logprobs):
            raise ValueError(
                f"{where}: {len(turn.sampled_ids)} sampled tokens, {len(turn.logprobs)} "
                "log-probabilities; the policy must return both (GenerationSettings of a "
                "training policy)"
            )
        ids += turn.prompt_ids
        if not ids:
            raise ValueError(f"{where}: sampled tokens without a prompt")
        ids += turn.sampled_ids
        trained = not (mask_truncated and turn.finish == "length")
        mask += [False] * len(turn.prompt_ids) + [trained] * len(turn.sampled_ids)
        logprobs += [0.0] * len(turn.prompt_ids) + list(turn.logprobs)
    return Row(
        tree=tree,
        frame=frame.frame,
        ids_T=np.asarray(ids, dtype=np.int64),
        env_mask_T=np.asarray(mask, dtype=np.bool_),
        logprobs_T=np.asarray(logprobs, dtype=np.float32),
        weight=0.0,
        advantage=0.0,
        fate="trained",
    )


def _pad(rows: Sequence[Row], pad_id: int) -> MicroBatch:
    shape = (len(rows), max(len(row.ids_T) for row in rows))
    ids = np.full(shape, pad_id, dtype=np.int64)
    attention = np.zeros(shape, dtype=np.int64)
    mask = np.zeros(shape, dtype=np.bool_)
    logprobs = np.zeros(shape, dtype=np.float32)
    for i, row in enumerate(rows):
        length = len(row.ids_T)
        ids[i, :length] = row.ids_T
        attention[i, :length] = 1
        mask[i, :length] = row.env_mask_T
        logprobs[i, :length] = row.logprobs_T
    sampled_columns = np.flatnonzero(mask.any(axis=0))
    first = int(sampled_columns[0]) if len(sampled_columns) else shape[1] - 1
    return MicroBatch(
        ids_B_T=ids,
        attention_B_T=attention,
        env_mask_B_T=mask,
        logprobs_B_T=logprobs,
        weights_B=np.asarray([row.weight for row in rows], dtype=np.float32),
        advantages_B=np.asarray([row.advantage for row in rows], dtype=np.float32),
        context=max(first, 1),
    )
