"""Episodes as MLflow traces: one span per frame, turn and cell, nested by their calls.

A frame (AGENT) contains its turns (LLM) and the cells of its code (TOOL). A child is below the
cell that opened it. Times are those of the episode, shifted so that it ends now. Traces are
samples for reading; figures go through `runs.py`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
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
            _Episode(run.run_id, run.experiment_id, label, trajectory).send()
    mlflow.flush_trace_async_logging()


class _Episode:
    """One trace while it is built."""

    def __init__(self, run_id: str, experiment: str, label: str, trajectory: Trajectory) -> None:
        self.run_id, self.experiment, self.label = run_id, experiment, label
        self.trajectory = trajectory
        self.start_ns = time.time_ns() - self._ns(trajectory.seconds)

    def send(self) -> None:
        """Create the spans from the root down."""
        self._frame(self.trajectory.root, None)

    def _frame(self, frame: FrameRecord, parent: Any) -> None:
        """Send a frame with its turns; a completion without a REPL is one LLM span."""
        from mlflow.entities import SpanType

        begins = frame.turns[0].at_s if frame.turns else self.trajectory.seconds
        ends = self.trajectory.seconds if frame.ended_s is None else frame.ended_s
        completion = frame.kind == "llm"
        span = self._start(
            self._name(frame),
            SpanType.LLM if completion else SpanType.AGENT,
            parent,
            begins,
            inputs=self._inputs(frame),
            attributes=self._about(frame),
        )
        if not completion:
            for number in range(len(frame.turns)):
                self._turn(frame, number, span, ends)
        span.end(outputs=self._outputs(frame), end_time_ns=self._at(max(begins, ends)))

    def _turn(self, frame: FrameRecord, number: int, parent: Any, frame_ends: float) -> None:
        """Send the policy's text, then the cell of its code with the children that it opened."""
        from mlflow.entities import SpanType

        turn = frame.turns[number]
        written = turn.at_s + turn.seconds
        span = self._start(
            f"turn {number + 1}",
            SpanType.LLM,
            parent,
            turn.at_s,
            inputs={"observation": turn.observation},
            attributes={"finish": turn.finish, "sampled_tokens": len(turn.sampled_ids)},
        )
        span.end(outputs={"text": turn.text}, end_time_ns=self._at(written))
        last = number == len(frame.turns) - 1
        following = None if last else frame.turns[number + 1]
        returned = max(written, frame_ends if following is None else following.at_s)
        cell = self._start(
            f"cell {number + 1}", SpanType.TOOL, parent, written, inputs={"code": turn.text}
        )
        for child in sorted(self.trajectory.children(frame.frame), key=lambda f: f.frame):
            if child.opened_in == number:
                self._frame(child, cell)
        seen = following.observation if following else f"the frame ended: {frame.stop_reason}"
        cell.end(outputs={"observation": seen}, end_time_ns=self._at(returned))

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
        root = frame.parent is None and asked is not None
        return ({"question": asked[1]} if root and asked else {}) | {"prompt": prompt}

    def _outputs(self, frame: FrameRecord) -> dict[str, Any]:
        if frame.parent is None:
            return {"answer": self.trajectory.answer, "reward": self.trajectory.reward}
        return {"last_turn": frame.turns[-1].text if frame.turns else ""}

    def _start(
        self, name: str, kind: str, parent: Any, at_s: float, inputs: Any, attributes: Any = None
    ) -> Any:
        import mlflow

        of_trace: dict[str, Any] = {}
        if parent is None:
            of_trace = {
                "experiment_id": self.experiment,
                "metadata": {SOURCE_RUN: self.run_id},
                "tags": {
                    "label": self.label,
                    "problem_id": self.trajectory.problem_id,
                    "difficulty": self.trajectory.difficulty,
                    "reward": f"{self.trajectory.reward or 0.0:.3f}",
                },
            }
        return mlflow.start_span_no_context(
            name,
            span_type=kind,
            parent_span=parent,
            inputs=inputs,
            attributes=attributes,
            start_time_ns=self._at(at_s),
            **of_trace,
        )

    def _at(self, seconds: float) -> int:
        return self.start_ns + self._ns(seconds)

    @staticmethod
    def _ns(seconds: float) -> int:
        return int(seconds * 1e9)

    def _name(self, frame: FrameRecord) -> str:
        if frame.parent is None:  # also the name of the trace
            return f"{self.label}: {self.trajectory.problem_id}"
        kind = "child" if frame.kind == "rlm" else "llm_query"
        return f"{kind} {frame.frame}, depth {frame.depth}"
