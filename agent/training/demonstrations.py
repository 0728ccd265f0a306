"""Rows for supervised training from demonstrated episodes, one row per conversation.

Pure. A row has the ids of a rollout; only tokens that the policy wrote have a label. Neighbours:
`agent/policies/tokenised.py` plays the episodes, `supervised.py` trains on the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import TypedDict

from agent.rollouts.trajectory import FrameRecord, Trajectory

IGNORED = -100
"""Label of a token without a loss."""


class DemonstrationRow(TypedDict):
    """A conversation; both lists have one entry per token."""

    input_ids: list[int]
    labels: list[int]


def demonstration_rows(
    episodes: Mapping[int, Trajectory], mistakes: Collection[tuple[int, int, int]] = ()
) -> list[DemonstrationRow]:
    """Rows of the frames that ended with an answer.

    Args:
        episodes: good episodes by their number.
        mistakes: (episode, frame, turn) of turns that have no labels.
    """
    rows = []
    for number, episode in episodes.items():
        for frame in episode.frames.values():
            if frame.stop_reason == "final":
                wrong = {turn for e, f, turn in mistakes if (e, f) == (number, frame.frame)}
                rows += _rows(frame, wrong)
    return rows


def good_episodes(
    episodes: Sequence[Trajectory], min_reward: float, min_f1: float = 0.0
) -> dict[int, Trajectory]:
    """Episodes with enough reward and F1, by their number."""
    return {
        number: episode
        for number, episode in enumerate(episodes)
        if episode.reward is not None
        and episode.reward >= min_reward
        and episode.metrics is not None
        and episode.metrics.f1 >= min_f1
    }


def _rows(frame: FrameRecord, wrong: Collection[int]) -> list[DemonstrationRow]:
    """Rows of a frame's conversations, without those that have no labels."""
    starts = [n for n, turn in enumerate(frame.turns) if n == 0 or turn.anew]
    rows = []
    for start, end in pairwise([*starts, len(frame.turns)]):
        row = DemonstrationRow(input_ids=[], labels=[])
        for number in range(start, end):
            turn = frame.turns[number]
            row["input_ids"] += turn.prompt_ids + turn.sampled_ids
            row["labels"] += [IGNORED] * len(turn.prompt_ids)
            skipped = [IGNORED] * len(turn.sampled_ids)
            row["labels"] += skipped if number in wrong else turn.sampled_ids
        if any(label != IGNORED for label in row["labels"]):
            rows.append(row)
    return rows
