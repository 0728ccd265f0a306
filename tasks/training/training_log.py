"""Log of the stage `train`: one row per step, and some whole episodes.

The log is in memory and in every checkpoint, so that a resumed run writes the same files as one
that was never killed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from agent.evaluation.report import transcript
from tasks import paths
from tasks.io import replacing

if TYPE_CHECKING:
    from agent.rollouts.trajectory import Trajectory
    from tasks.tracking.runs import StageRun

EPISODES = Path("reports/raw_episodes.jsonl")
SHOWN = 4


class TrainingLog:
    """Rows and raw episodes of a run.

    Args:
        run: the MLflow run that gets the same numbers.
    """

    def __init__(self, run: StageRun) -> None:
        self._run = run
        self.rows: list[dict[str, Any]] = []
        self.episodes: list[dict[str, Any]] = []

    def add_step(self, step: int, metrics: Mapping[str, float], **labels: str) -> None:
        """Add a step's figures by metric name; labels become columns only."""
        self._run.log_metrics(metrics, step)
        self.rows.append({"step": step, **labels, **metrics})

    def add_episodes(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Add the best, the worst and two other episodes: readers notice exploits first."""
        valid = [t for t in trajectories if t.void is None]
        shown = spread(sorted(valid, key=lambda t: t.reward or 0.0, reverse=True), SHOWN)
        self.episodes += [{"step": step, **transcript(t, "train", "sampled")} for t in shown]
        self._run.log_table(
            [
                {
                    "step": step,
                    "problem_id": t.problem_id,
                    "difficulty": t.difficulty,
                    "reward": t.reward,
                    **{name: round(value, 4) for name, value in t.components.items()},
                    "text": as_text(t),
                }
                for t in shown
            ],
            "raw_episodes",
        )

    def write(self) -> None:
        """Write both files atomically."""
        with replacing(paths.TRAIN_ROWS) as temporary:
            pd.DataFrame(self.rows).to_parquet(temporary, index=False)
        with replacing(EPISODES) as temporary:
            lines = (json.dumps(episode, ensure_ascii=False) + "\n" for episode in self.episodes)
            temporary.write_text("".join(lines), encoding="utf-8")

    def state(self) -> dict[str, Any]:
        """State for a checkpoint."""
        return {"rows": self.rows, "episodes": self.episodes}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self.rows, self.episodes = list(state["rows"]), list(state["episodes"])


def spread(ranked: Sequence[Trajectory], count: int) -> list[Trajectory]:
    """At most `count` items at even distances, the first and the last included."""
    last = len(ranked) - 1
    places = {round(i * last / max(1, count - 1)) for i in range(count)} if ranked else set()
    return [ranked[place] for place in sorted(places)]


def as_text(trajectory: Trajectory) -> str:
    """Text of an episode, frame by frame."""
    lines: list[str] = []
    for frame in sorted(trajectory.frames.values(), key=lambda record: record.frame):
        of = "" if frame.parent is None else f" of {frame.parent}"
        lines.append(f"=== {frame.kind} frame {frame.frame}{of}, depth {frame.depth}")
        for turn in frame.turns:
            lines += [f"<<< {turn.observation}", f">>> {turn.text}"]
        lines.append(f"=== ended: {frame.stop_reason}")
    return "\n".join(lines)
