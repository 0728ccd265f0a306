"""The evaluate stage with scripted policies, which play real episodes on a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.recorder import Recorder

from agent.policies.base import Policy, TurnReply
from agent.settings import EngineSettings
from benchmarks.exploits.fields_expert import careless, fields_expert
from env.errors import EpisodeError
from tasks import evaluate, paths
from tasks.config.params import Params
from tasks.errors import StageError
from tasks.tracking.runs import result_metrics

EPISODES = 9


class Failing:
    """A policy whose every turn fails: void episodes."""

    def act(self, requests: Any) -> list[TurnReply]:
        return [TurnReply(text="", finish="error") for _ in requests]

    def release(self, keys: Any) -> None: ...


@pytest.fixture
def project(served_folder: Path, server_params: Params, monkeypatch: pytest.MonkeyPatch) -> Params:
    """A working folder with data; models/base plays carelessly, models/merged as an expert."""
    for path in evaluate.MODELS.values():
        path.mkdir(parents=True)
    monkeypatch.setattr(evaluate, "KEPT", 2)
    few = {"episodes": EPISODES, "latency_episodes": 3, "bootstrap": 200}
    play_as(monkeypatch, before=careless(), after=fields_expert())
    return with_settings(server_params, few)


def play_as(monkeypatch: pytest.MonkeyPatch, before: Policy, after: Policy) -> None:
    def load(path: Path, generation: Any) -> Policy:
        return before if path == evaluate.MODELS["before"] else after

    monkeypatch.setattr(evaluate, "load_policy", load)


@pytest.fixture
def short(project: Params) -> Params:
    """The same with one problem of each difficulty."""
    return with_settings(project, {"episodes": 3})


def with_settings(params: Params, settings: dict[str, int]) -> Params:
    """The parameters with other settings of the stage, without a check of their bounds."""
    evaluate = params.evaluate.model_copy(update=settings)
    tracking = params.tracking.model_copy(update={"traces": 0})
    absent = EngineSettings(url="http://127.0.0.1:9")  # only the training asks it
    changed = {"evaluate": evaluate, "tracking": tracking, "engine": absent}
    return params.model_copy(update=changed)


def run(params: Params) -> Recorder:
    recorder: Any = Recorder()
    evaluate.run(params, recorder)
    return recorder


def test_an_expert_is_measured_to_be_better_than_a_careless_policy(
    project: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = run(project)
    told = json.loads(paths.EVALUATION.read_text())
    assert told["n"] == EPISODES
    assert told["after"]["f1_greedy"] > 0.9
    assert told["before"]["reward_mean"] < told["after"]["reward_mean"]
    assert told["reward"]["ci95"][0] > 0
    assert told["reward"]["mode"] == "sampled"
    assert told["after"]["greedy"]["exact_match"] > told["before"]["greedy"]["exact_match"]
    assert told["improvement"] in capsys.readouterr().out
    assert recorder.metrics["evaluate/f1_greedy_after"] == told["after"]["f1_greedy"]
    assert recorder.artifacts == [paths.EVALUATION, evaluate.EPISODES, paths.TRANSCRIPTS]

    episodes = pd.read_parquet(evaluate.EPISODES)
    assert len(episodes) == 2 * 2 * EPISODES  # two models; greedy and sampled
    keys = ["problem_id", "mode"]
    before, after = (
        episodes[episodes["model"] == model].set_index(keys).sort_index()
        for model in ("before", "after")
    )
    assert before.index.equals(after.index)  # the same problems and modes
    assert set(episodes.groupby("difficulty").size()) == {2 * 2 * EPISODES // 3}
    assert told["after"]["reward_mean"] == pytest.approx(
        after.xs("sampled", level="mode")["reward"].mean()
    )

    lines = [json.loads(line) for line in paths.TRANSCRIPTS.read_text().splitlines()]
    played = set(episodes.loc[episodes["difficulty"] == "easy", "problem_id"])
    ids = [name for name in pd.read_parquet(paths.TEST)["problem_id"] if name in played]
    shown = [x["problem_id"] for x in lines if x["difficulty"] == "easy" and x["model"] == "after"]
    assert shown == ids[:2]  # the first of the data, not the best
    assert len(lines) == 2 * 3 * 2
    assert any(frame["parent"] is not None for line in lines for frame in line["frames"])


def test_void_episodes_of_a_model_stop_the_stage_and_keep_the_old_report(
    short: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_as(monkeypatch, before=careless(), after=Failing())
    paths.EVALUATION.parent.mkdir()
    paths.EVALUATION.write_text("old")
    with pytest.raises(StageError, match=r"all episodes of after are void"):
        run(short)
    assert paths.EVALUATION.read_text() == "old"
    assert not evaluate.EPISODES.exists()


class DyingAlone:
    """Plays `left` episodes of each model one at a time, then the environment is gone."""

    def __init__(self, *left: int) -> None:
        self.left, self.play_model = list(left), evaluate.play_model

    def __call__(self, model: Any, url: str, specs: Any, *args: Any, **options: Any) -> Any:
        if options["sessions"] > 1:
            return self.play_model(model, url, specs, *args, **options)
        if left := self.left.pop(0):
            self.play_model(model, url, specs[:left], *args, **options)
        raise EpisodeError("the environment plays no more")


def test_an_outage_among_the_lone_episodes_costs_the_latency_alone(
    short: Params, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(evaluate, "play_model", DyingAlone(0, 2))
    run(short)
    told = json.loads(paths.EVALUATION.read_text())
    assert told["after"]["f1_greedy"] > 0.9
    for model, left in (("before", 0), ("after", 2)):
        latency = told[model]["latency"]["one_at_a_time"]
        assert latency["episodes"] == left
        assert (latency["p50_s"] is None) == (left == 0)
        assert ("result/latency_p50_s" in result_metrics(told[model])) == (left > 0)
        warnings = [text for text in caplog.messages if f"{model}, one at a time" in text]
        assert len(warnings) == 1
        assert f"only {left} of 3 episodes count for the latency" in warnings[0]
        assert "the environment plays no more" in warnings[0]
