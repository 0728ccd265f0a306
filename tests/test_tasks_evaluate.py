"""The evaluate stage with scripted policies, which play real episodes on a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from agent.policy import Policy, TurnReply
from agent.scripted import careless, expert
from tasks import evaluate
from tasks.config import Params
from tasks.errors import StageError

EPISODES = 21


class Recorder:
    """Stands for the run."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.artifacts: list[Path] = []

    def log_metrics(self, metrics: dict[str, float]) -> None:
        self.metrics |= metrics

    def log_artifact(self, path: Path) -> None:
        self.artifacts.append(path)


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
    data = server_params.model_dump(by_alias=True)
    data["evaluate"] |= {"episodes": EPISODES, "latency_episodes": 3, "bootstrap": 500}
    data["evaluate"] |= {"transcripts": 2, "sampling_seeds": 2}
    play_as(monkeypatch, before=careless(), after=expert())
    return Params.model_validate(data | {"threads": 1})


def play_as(monkeypatch: pytest.MonkeyPatch, before: Policy, after: Policy) -> None:
    def load(path: Path, generation: Any) -> Policy:
        return before if path == evaluate.MODELS["before"] else after

    monkeypatch.setattr(evaluate, "load_policy", load)


def run(params: Params) -> Recorder:
    recorder: Any = Recorder()
    evaluate.run(params, recorder)
    return recorder


def test_an_expert_is_measured_to_be_better_than_a_careless_policy(
    project: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = run(project)
    told = json.loads(evaluate.REPORT.read_text())
    assert told["n"] == EPISODES
    assert told["after"]["f1_greedy"] > 0.9
    assert told["before"]["reward_mean"] < told["after"]["reward_mean"]
    assert told["reward"]["ci95"][0] > 0
    assert told["reward"]["mode"] == "sampled"
    assert told["improvement"] in capsys.readouterr().out
    assert recorder.metrics["evaluate/f1_greedy_after"] == told["after"]["f1_greedy"]
    assert recorder.artifacts == [evaluate.REPORT, evaluate.EPISODES, evaluate.TRANSCRIPTS]

    episodes = pd.read_parquet(evaluate.EPISODES)
    assert len(episodes) == 2 * 3 * EPISODES  # two models; greedy and two sampled passes
    keys = ["problem_id", "mode", "pass"]
    before, after = (
        episodes[episodes["model"] == model].set_index(keys).sort_index()
        for model in ("before", "after")
    )
    assert before.index.equals(after.index)  # the same problems, modes and passes
    assert set(episodes.groupby("difficulty").size()) == {2 * 3 * EPISODES // 3}
    assert told["after"]["reward_mean"] == pytest.approx(
        after.loc[:, "sampled", :]["reward"].mean()
    )

    lines = [json.loads(line) for line in evaluate.TRANSCRIPTS.read_text().splitlines()]
    ids = sorted(set(episodes.loc[episodes["difficulty"] == "easy", "problem_id"]))
    shown = [x["problem_id"] for x in lines if x["difficulty"] == "easy" and x["model"] == "after"]
    assert sorted(shown) == ids[:2]  # the first by id, not the best
    assert len(lines) == 2 * 3 * 2
    assert any(frame["parent"] is not None for line in lines for frame in line["frames"])


def test_void_episodes_of_a_model_stop_the_stage_and_keep_the_old_report(
    project: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_as(monkeypatch, before=careless(), after=Failing())
    evaluate.REPORT.parent.mkdir()
    evaluate.REPORT.write_text("old")
    with pytest.raises(StageError, match=r"every episode of after is void"):
        run(project)
    assert evaluate.REPORT.read_text() == "old"
    assert not evaluate.EPISODES.exists()


def test_the_same_seed_chooses_the_same_problems_and_seeds(project: Params) -> None:
    first = evaluate.choose(evaluate.TEST, EPISODES, 0)
    assert first == evaluate.choose(evaluate.TEST, EPISODES, 0)
    assert first != evaluate.choose(evaluate.TEST, EPISODES, 1)
    assert len({spec.seed for spec in first}) == EPISODES


def test_too_few_problems_say_which_setting_to_change(project: Params) -> None:
    with pytest.raises(StageError, match=r"lower evaluate.episodes or raise prepare.synthetic"):
        evaluate.choose(evaluate.TEST, 10_000, 0)


def test_a_missing_model_names_the_stage_to_run(project: Params) -> None:
    evaluate.MODELS["after"].rmdir()
    with pytest.raises(StageError, match=r"models/merged is missing; run the stage export first"):
        run(project)


def test_missing_data_names_the_stage_to_run(project: Params) -> None:
    evaluate.TEST.unlink()
    with pytest.raises(StageError, match=r"test.parquet is missing; run the stage prepare first"):
        run(project)
