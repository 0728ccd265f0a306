"""Conversion of groups of trajectories to rows for the loss, one row per conversation.

Pure numpy. A row has the token ids of a frame, a mask of the sampled tokens, the frame's weight and
its advantage, from `advantages.py`. A child without an answer gets min(advantage, 0).

The weight multiplies a row's whole token loss. The step's summed loss is divided once, by
`Rows.normaliser`, which depends on all rows. So the cut into micro-batches has no effect.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agent.decoding.prefix_tree import by_length, in_order, packs
from agent.rollouts.trajectory import FrameRecord, Trajectory
from agent.settings import TrainSettings
from agent.training.advantages import (
    CUT,
    frame_weights,
    has_signal,
    relative_advantages,
    sampled_anything,
    valid_reward,
)

Fate = Literal["trained", "void", "cut"]
"""`void`: infrastructure lost its tree. `cut`: a budget ended it."""


@dataclass(frozen=True)
class LossRow:
    """A conversation of a frame as the loss sees it. T: its tokens."""

    tree: int
    """Index of the episode in the step, over all groups."""
    frame: int
    ids_T: NDArray[np.int64]
    env_mask_T: NDArray[np.bool_]
    """True on tokens that the policy sampled."""
    logprobs_T: NDArray[np.float32]
    """Log-probabilities at sampling time; 0 on tokens that were not sampled."""
    weight: float
    """Weight of the row's token loss; 0 excludes the row (void or cut)."""
    advantage: float
    fate: Fate

    @property
    def tokens(self) -> int:
        """Number of sampled tokens in the loss."""
        return int(self.env_mask_T.sum())

    @property
    def has_gradient(self) -> bool:
        """Whether the row can change the gradient."""
        return self.weight > 0 and self.advantage != 0


@dataclass(frozen=True)
class Rows:
    """All rows of a step, and figures of its groups."""

    rows: list[LossRow]
    groups: int
    flat_groups: int
    """Groups without a signal: too small a deviation, or fewer than two valid trees."""
    normaliser: float
    """Divisor of the step's summed loss: the sum of weight x mask, as in `dapo`."""

    def count(self, fate: Fate) -> int:
        """Number of rows of a fate."""
        return sum(row.fate == fate for row in self.rows)


@dataclass(frozen=True)
class MicroBatch:
    """Rows of one forward and backward pass, padded on the right to B rows of T tokens."""

    ids_B_T: NDArray[np.int64]
    attention_B_T: NDArray[np.int64]
    env_mask_B_T: NDArray[np.bool_]
    logprobs_B_T: NDArray[np.float32]
    weights_B: NDArray[np.float32]
    advantages_B: NDArray[np.float32]
    families_B: NDArray[np.int64]
    """Number of each row's family in the step (`_families`); -1 for blank rows."""
    context: int
    """Number of leading columns without a sampled token; at least 1."""


def make_rows(groups: Sequence[Sequence[Trajectory]], settings: TrainSettings) -> Rows:
    """Make all rows of a step.

    Args:
        groups: the trees of each problem.
        settings: inheritance, scaling, limits.
    """
    # 1. A tree's advantage: its reward relative to its group.
    rewards_G = [[valid_reward(tree) for tree in group] for group in groups]
    advantages = relative_advantages(rewards_G, settings)
    # 2. A row for each frame of each tree, void trees included.
    parts = zip(chain.from_iterable(groups), chain.from_iterable(advantages), strict=True)
    rows = [row for index, part in enumerate(parts) for row in _tree_rows(index, *part, settings)]
    # 3. The divisor of the loss, from all rows of the step.
    flat = [not has_signal(group, settings) for group in rewards_G]
    return Rows(
        rows=rows,
        groups=len(groups),
        flat_groups=sum(flat),
        normaliser=float(sum(row.weight * row.tokens for row in rows)),
    )


def micro_batches(
    rows: Sequence[LossRow],
    most_tokens: int,
    pad_id: int,
    *,
    trees: bool,
    rank: int = 0,
    ranks: int = 1,
) -> list[MicroBatch]:
    """Cut the rows into batches of at most `most_tokens`; none is dropped.

    With `trees`, a beginning that rows of a batch share counts once, so rows with equal beginnings
    are neighbours. Otherwise padding counts too, so rows of similar length are. A row that is
    longer than the limit is a batch of its own.

    All ranks get equally many batches of equally many rows, because a batch has collective calls.
    Blank rows of weight 0 see to that.
    """
    placed = list(zip(_families(rows), rows, strict=True))
    rounds = (_packed if trees else _by_length)(placed, most_tokens, ranks)
    batches = []
    for dealt in rounds:
        mine, most = dealt[rank], max(map(len, dealt))
        batches.append(_pad(mine + [(-1, _BLANK)] * (most - len(mine)), pad_id))
    return batches


_Placed = tuple[int, LossRow]
"""A row, and the number of its family."""


def _families(rows: Sequence[LossRow]) -> list[int]:
    """Family of each row: it joins that of the row before it if they share half of its tokens.

    The order is lexicographic, so families do not depend on how the rows are cut and dealt.
    """
    order, shared = in_order([row.ids_T for row in rows])
    families, family = [0] * len(rows), -1
    for index, common in zip(order, shared, strict=True):
        family += 2 * common < len(rows[index].ids_T)
        families[index] = family
    return families


def _packed(rows: Sequence[_Placed], most_tokens: int, ranks: int) -> list[list[list[_Placed]]]:
    """Rows of each rank in each round; a rank's prefix tree has at most `most_tokens` nodes."""
    indices = packs([row.ids_T for _, row in rows], most_tokens)
    parts = [[rows[index] for index in pack] for pack in indices]
    parts += [[] for _ in range(-len(parts) % ranks)]
    return [parts[first : first + ranks] for first in range(0, len(parts), ranks)]


def _by_length(rows: Sequence[_Placed], most_tokens: int, ranks: int) -> list[list[list[_Placed]]]:
    """Rows of each rank in each round; padded, a rank's are at most `most_tokens`."""
    batches = by_length([row.ids_T for _, row in rows], most_tokens, ranks)
    parts = [[rows[index] for index in batch] for batch in batches]
    return [[part[rank::ranks] for rank in range(ranks)] for part in parts]


def _tree_rows(
    index: int, trajectory: Trajectory, advantage: float, settings: TrainSettings
) -> list[LossRow]:
    """Rows of the frames of a tree that sampled anything."""
    void = valid_reward(trajectory) is None
    weights = frame_weights(trajectory)
    alone = settings.inheritance == "none"
    rows = []
    for number, frame in sorted(trajectory.frames.items()):
        if not sampled_anything(frame) or (alone and number):
            continue
        gain = advantage
        # A child without an answer is never rewarded for the answers of others.
        if frame.parent is not None and frame.stop_reason != "final":
            gain = min(gain, 0.0)
        fate: Fate = "void" if void else "cut" if frame.stop_reason in CUT else "trained"
        weight = weights[number] if fate == "trained" else 0.0
        rows.append(replace(_row(index, frame), weight=weight, advantage=gain, fate=fate))
    return rows


def _row(tree: int, frame: FrameRecord) -> LossRow:
    """Concatenate the tokens of a frame's turns.

    Raises:
        ValueError: the numbers of tokens and log-probabilities differ, or a first turn has no
            prompt.
    """
    ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    for number, turn in enumerate(frame.turns):
        where = f"episode {tree}, frame {frame.frame}, turn {number}"
        if len(turn.sampled_ids) != len(turn.logprobs):
            raise ValueError(
                f"{where}: {len(turn.sampled_ids)} sampled tokens, {len(turn.logprobs)} "
                "log-probabilities (only a policy that returns both can be trained)"
            )
        ids += turn.prompt_ids
        if not ids:
            raise ValueError(f"{where}: sampled tokens without a prompt")
        ids += turn.sampled_ids
        mask += [False] * len(turn.prompt_ids) + [True] * len(turn.sampled_ids)
        logprobs += [0.0] * len(turn.prompt_ids) + list(turn.logprobs)
    return LossRow(
        tree=tree,
        frame=frame.frame,
        ids_T=np.asarray(ids, dtype=np.int64),
        env_mask_T=np.asarray(mask, dtype=np.bool_),
        logprobs_T=np.asarray(logprobs, dtype=np.float32),
        weight=0.0,
        advantage=0.0,
        fate="trained",
    )


_BLANK = LossRow(
    tree=-1,
    frame=-1,
    ids_T=np.zeros(2, dtype=np.int64),
    env_mask_T=np.zeros(2, dtype=np.bool_),
    logprobs_T=np.zeros(2, dtype=np.float32),
    weight=0.0,
    advantage=0.0,
    fate="void",
)


def _pad(placed: Sequence[_Placed], pad_id: int) -> MicroBatch:
    """Pad rows on the right to the longest."""
    rows = [row for _, row in placed]
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
        families_B=np.asarray([family for family, _ in placed], dtype=np.int64),
        context=max(first, 1),
    )
