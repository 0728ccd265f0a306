"""Episodes as traces: real ones, read back from a real store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from benchmarks.exploits.fields_expert import fields_expert
from env.problems.store import ProblemStore
from tasks.config.params import Params
from tasks.tracking import runs, traces


@pytest.fixture(scope="module")
def episode(server_url: str, server_problems: ProblemStore) -> Trajectory:
    """An expert's, with children."""
    (problem, *_) = server_problems.ids("test", "hard")
    policy = fields_expert(ask="rlm_query")
    (played,) = play(policy, server_url, [EpisodeSpec(problem, difficulty="hard")], sessions=1)
    assert len(played.frames) > 1
    return played


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_store: Path) -> runs.StageRun:
    monkeypatch.chdir(tmp_path)
    return runs.start_run("train", Params())


def stored(run: runs.StageRun) -> list[Any]:
    import mlflow

    return list(mlflow.search_traces(locations=[run.experiment_id], return_type="list"))


def test_the_tree_of_frames_is_the_tree_of_spans(run: runs.StageRun, episode: Trajectory) -> None:
    traces.log_episodes(run, [("step 1", episode)])
    (trace,) = stored(run)
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


def test_the_root_shows_the_answer_and_the_reward_by_component(
    run: runs.StageRun, episode: Trajectory
) -> None:
    traces.log_episodes(run, [("after", episode)])
    (trace,) = stored(run)
    (root,) = (span for span in trace.data.spans if span.parent_id is None)
    question, prompt = root.inputs["question"], root.inputs["prompt"]
    assert question in prompt.splitlines()
    assert trace.info.request_preview.startswith(json.dumps({"question": question})[:-1])
    assert root.outputs == {"answer": episode.answer, "reward": episode.reward}
    assert root.attributes["reward.primary_objective"] == pytest.approx(
        episode.components["primary_objective"], abs=1e-4
    )
    assert root.attributes["counters.sub_calls"] == episode.counters.sub_calls
    assert trace.info.tags["difficulty"] == "hard"


def test_void_episodes_make_no_trace(run: runs.StageRun) -> None:
    lost = Trajectory("test-hard-0000-0", "hard", void="connection: gone")
    traces.log_episodes(run, [("step 1", lost)])
    assert stored(run) == []
