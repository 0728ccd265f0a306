"""Episodes as MLflow traces: one span per frame, turn and cell, nested by their calls.

A frame (AGENT) contains its turns (LLM) and the cells of its code (TOOL). A child is below the
cell that opened it. Times are those of the episode, shifted so that it ends now. Traces are
samples for reading; figures go through `runs.py`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from agent.rollouts.trajectory import FrameRecord, Trajectory
from tasks.tracking.runs import StageRun

SOURCE_RUN = "mlflow.sourceRun"
"""MLflow's metadata key for the run of a trace."""


def log_episodes(run: StageRun, episodes: Iterable[tuple[str, Trajectory]]) -> None:
    """Send episodes as traces of a run.

    Args:
        run: the stage's run; its page lists the traces.
        episodes: each with a label such as `step 20` or `after`.
    """
    import mlflow

    for label, trajectory in episodes:
        if trajectory.void is None and trajectory.frames:
            episode = _Episode(run.run_id, run.experiment_id, label, trajectory)
            episode.send_frame(trajectory.root)
    mlflow.flush_trace_async_logging()


class _Episode:
    """One trace while it is built."""

    def __init__(self, run_id: str, experiment: str, label: str, trajectory: Trajectory) -> None:
        self.label, self.trajectory = label, trajectory
        self.start_ns = time.time_ns() - int(trajectory.seconds * 1e9)
        self.of_trace = {
            "experiment_id": experiment,
            "metadata": {SOURCE_RUN: run_id},
            "tags": {
                "label": label,
                "problem_id": trajectory.problem_id,
                "difficulty": trajectory.difficulty,
                "reward": f"{trajectory.reward or 0.0:.3f}",
            },
        }

    def send_frame(self, frame: FrameRecord, parent: Any = None) -> None:
        """Send a frame with its turns; a completion without a REPL is one LLM span."""
        seconds = self.trajectory.seconds
        begins = frame.turns[0].at_s if frame.turns else seconds
        ends = seconds if frame.ended_s is None else frame.ended_s
        completion = frame.kind == "llm"
        with self._span(
            self._name(frame),
            "LLM" if completion else "AGENT",
            parent,
            (begins, max(begins, ends)),
            inputs=self._inputs(frame),
            outputs=self._outputs(frame),
            attributes=self._about(frame),
        ) as span:
            for number in range(0 if completion else len(frame.turns)):
                self._send_turn(frame, number, span, ends)

    def _send_turn(self, frame: FrameRecord, number: int, parent: Any, frame_ends: float) -> None:
        """Send the policy's text, then the cell of its code with the children that it opened."""
        turn, following = frame.turns[number], next(iter(frame.turns[number + 1 :]), None)
        written = turn.at_s + turn.seconds
        returned = max(written, following.at_s if following else frame_ends)
        seen = following.observation if following else f"the frame ended: {frame.stop_reason}"
        with self._span(
            f"turn {number + 1}",
            "LLM",
            parent,
            (turn.at_s, written),
            inputs={"observation": turn.observation},
            outputs={"text": turn.text},
            attributes={"finish": turn.finish, "sampled_tokens": len(turn.sampled_ids)},
        ):
            pass
        with self._span(
            f"cell {number + 1}",
            "TOOL",
            parent,
            (written, returned),
            inputs={"code": turn.text},
            outputs={"observation": seen},
        ) as cell:
            for child in sorted(self.trajectory.children(frame.frame), key=lambda f: f.frame):
                if child.opened_in == number:
                    self.send_frame(child, cell)

    def _about(self, frame: FrameRecord) -> dict[str, Any]:
        """Attributes of a frame; the root also has those of the episode."""
        fields: dict[str, Any] = {
            "frame": frame.frame,
            "depth": frame.depth,
            "stop_reason": str(frame.stop_reason),
        }
        if frame.frame in self.trajectory.frame_scores:
            fields["frame_score"] = self.trajectory.frame_scores[frame.frame]
        if frame.parent is not None:
            return fields
        episode = self.trajectory
        fields |= {"problem_id": episode.problem_id, "difficulty": episode.difficulty}
        fields["reward"] = episode.reward
        fields |= {f"reward.{name}": round(value, 4) for name, value in episode.components.items()}
        fields |= {f"metrics.{name}": value for name, value in episode.metrics or ()}
        return fields | {f"counters.{name}": value for name, value in episode.counters}

    def _inputs(self, frame: FrameRecord) -> dict[str, str]:
        """First prompt of a frame; the root's question is in front, where the list shows it."""
        prompt = frame.turns[0].observation if frame.turns else ""
        asked = re.search(r"^(.+)\ncontext: \d+ papers$", prompt, re.M)
        question = {"question": asked[1]} if asked and frame.parent is None else {}
        return question | {"prompt": prompt}

    def _outputs(self, frame: FrameRecord) -> dict[str, Any]:
        if frame.parent is None:
            return {"answer": self.trajectory.answer, "reward": self.trajectory.reward}
        return {"last_turn": frame.turns[-1].text if frame.turns else ""}

    @contextmanager
    def _span(
        self, name: str, kind: str, parent: Any, seconds: tuple[float, float], **content: Any
    ) -> Iterator[Any]:
        """A span from one second of the episode to another; its children are sent in the block."""
        import mlflow

        begins, ends = (self.start_ns + int(at * 1e9) for at in seconds)
        outputs = content.pop("outputs")
        content |= self.of_trace if parent is None else {}
        span = mlflow.start_span_no_context(
            name, span_type=kind, parent_span=parent, start_time_ns=begins, **content
        )
        yield span
        span.end(outputs=outputs, end_time_ns=ends)

    def _name(self, frame: FrameRecord) -> str:
        if frame.parent is None:  # also the name of the trace
            return f"{self.label}: {self.trajectory.problem_id}"
        kind = "child" if frame.kind == "rlm" else "llm_query"
        return f"{kind} {frame.frame}, depth {frame.depth}"
