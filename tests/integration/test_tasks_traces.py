"""Episodes as traces: real ones, read back from a real store."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from benchmarks.exploits.fields_expert import fields_expert
from env.problems.store import ProblemStore
from tasks.config.params import Params
from tasks.tracking import runs, traces


def test_a_tree_of_frames_is_a_tree_of_spans_and_a_void_episode_none(
    server_url: str,
    server_problems: ProblemStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mlflow_store: Path,
) -> None:
    import mlflow

    monkeypatch.chdir(tmp_path)
    (problem, *_) = server_problems.ids("test", "hard")
    policy = fields_expert(ask="rlm_query")
    (episode,) = play(policy, server_url, [EpisodeSpec(problem, difficulty="hard")], sessions=1)
    assert len(episode.frames) > 1
    run = runs.start_run("train", Params())
    lost = Trajectory("test-hard-0000-0", "hard", void="connection: gone")
    traces.log_episodes(run, [("step 1", lost), ("step 1", episode)])
    (trace,) = mlflow.search_traces(locations=[run.experiment_id], return_type="list")
    assert trace.info.trace_metadata[traces.SOURCE_RUN] == run.run_id
    spans = {span.span_id: span for span in trace.data.spans}
    agents = [span for span in spans.values() if span.span_type == "AGENT"]
    frames = [frame for frame in episode.frames.values() if frame.kind == "rlm"]
    assert len(agents) == len(frames)
    assert sum(s.span_type == "LLM" for s in spans.values()) == sum(
        len(frame.turns) for frame in episode.frames.values()
    )
    for span in agents:
        frame = episode.frames[span.attributes["frame"]]
        if frame.parent is None:
            assert span.name == f"step 1: {episode.problem_id}"
            assert span.parent_id is None
            continue
        # A child hangs below the cell of its parent's turn that asked for it.
        cell = spans[span.parent_id]
        assert (cell.span_type, cell.name) == ("TOOL", f"cell {(frame.opened_in or 0) + 1}")
        assert spans[cell.parent_id].attributes["frame"] == frame.parent

    # The root shows the answer, and the reward by component.
    (root,) = (span for span in trace.data.spans if span.parent_id is None)
    assert root.inputs["question"] in root.inputs["prompt"].splitlines()
    assert root.outputs == {"answer": episode.answer, "reward": episode.reward}
    assert root.attributes["reward.primary_objective"] == pytest.approx(
        episode.components["primary_objective"], abs=1e-4
    )
    assert trace.info.tags["difficulty"] == "hard"
