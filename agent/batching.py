"""From groups of trajectories to rows for the loss: one row a frame.

Pure logic on numpy arrays; no torch. A row is a frame's whole conversation as token ids, with
1s where the policy sampled, the frame's weight in its tree and the advantage its root earned.
Weights and advantages are those of `agent/advantages.py`; a child that gave no answer gets
min(advantage, 0). The loss of a row is multiplied as a whole by its weight, and that of the step
is divided once, by a number that all rows together make (`Rows.normaliser`), so how the rows are
cut into micro-batches changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agent.advantages import (
    CUT,
    frame_weights,
    has_signal,
    own_advantages,
    relative_advantages,
    sampled_anything,
    shuffle_advantages,
    valid_reward,
)
from agent.settings import TrainSettings
from agent.trajectory import FrameRecord, Trajectory

Fate = Literal["trained", "void", "cut"]
"""`void`: an infrastructure failure in its tree. `cut`: a budget ended it, or a token limit its
only turn."""


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
    normaliser: float
    """What the step's summed loss is divided by; see `loss_normaliser`."""

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


def make_rows(
    groups: Sequence[Sequence[Trajectory]], settings: TrainSettings, rng: np.random.Generator
) -> Rows:
    """All rows of one step.

    Args:
        groups: the trees of each problem.
        settings: inheritance, scaling, limits, control.
        rng: used by the control `shuffled_advantages` only.
    """
    rewards_G = [[valid_reward(tree) for tree in group] for group in groups]
    advantages = relative_advantages(rewards_G, settings)
    own = own_advantages(groups, settings) if settings.inheritance == "local" else None
    if settings.control == "shuffled_advantages":
        advantages = shuffle_advantages(advantages, rewards_G, rng)
        own = None  # it would still be true
    trees = [tree for group in groups for tree in group]
    dealt = [advantage for group in advantages for advantage in group]
    scores = [scores for group in own or [] for scores in group] or [{} for _ in trees]
    rows = [
        row
        for index, tree in enumerate(trees)
        for row in _tree_rows(index, tree, dealt[index], scores[index], settings)
    ]
    flat = [not has_signal([r for r in group if r is not None], settings) for group in rewards_G]
    valid = sum(reward is not None for group in rewards_G for reward in group)
    return Rows(
        rows=rows,
        groups=len(groups),
        flat_groups=sum(flat),
        normaliser=loss_normaliser(rows, valid, settings),
    )


def loss_normaliser(rows: Sequence[Row], trees: int, settings: TrainSettings) -> float:
    """What the summed token losses of a step are divided by.

    `dapo` and `cispo`: the sum of weight x mask. `dr_grpo`: a constant that nothing sampled
    enters, neither lengths nor the number of children: valid trees x `max_frame_tokens`.
    """
    if settings.loss_type == "dr_grpo":
        return float(trees * settings.generation.max_frame_tokens)
    return float(sum(row.weight * row.tokens for row in rows))


def micro_batches(rows: Sequence[Row], most_rows: int, pad_id: int) -> list[MicroBatch]:
    """Rows of similar length together, at most `most_rows` in each; none is dropped."""
    ordered = sorted(rows, key=lambda row: len(row.ids_T))
    return [
        _pad(ordered[start : start + most_rows], pad_id)
        for start in range(0, len(ordered), most_rows)
    ]


def _tree_rows(
    index: int,
    trajectory: Trajectory,
    advantage: float,
    own: Mapping[int, float],
    settings: TrainSettings,
) -> list[Row]:
    void = valid_reward(trajectory) is None
    weights = frame_weights(trajectory, settings.inheritance)
    rows = []
    for number, frame in sorted(trajectory.frames.items()):
        if not sampled_anything(frame):
            continue
        row = _frame_row(index, frame, settings.mask_truncated)
        is_cut = frame.stop_reason in CUT or not row.tokens
        fate: Fate = "void" if void else "cut" if is_cut else "trained"
        mine = advantage + own.get(number, 0.0)
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
