"""Evaluation: scripted policies before and after, and one model at an endpoint."""

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import pytest
from helpers.changed import changed, write_params
from helpers.fake_endpoint import FakeServer, serving
from helpers.recorder import Recorder, recorded
from typer.testing import CliRunner

from agent.policies.base import Policy, TurnReply
from benchmarks.exploits.fields_expert import careless, fields_expert
from env.errors import EpisodeError
from flows import cli
from tasks import evaluate, evaluate_model, paths
from tasks.config.params import Params
from tasks.errors import ConfigError, StageError
from tasks.reporting import progress
from tasks.tracking import runs

EPISODES = 9


FAILING = mock.Mock(spec=Policy, act=lambda asked: [TurnReply("", finish="error") for _ in asked])
"""A policy whose every turn fails: void episodes."""


KILLED = mock.Mock(spec=Policy, act=mock.Mock(side_effect=KeyboardInterrupt))
"""A policy during whose turn the process is interrupted."""


@pytest.fixture
def project(served_folder: Path, server_params: Params, monkeypatch: pytest.MonkeyPatch) -> Params:
    """A working folder with data; models/base plays carelessly, models/merged as an expert."""
    for path in evaluate.MODELS.values():
        path.mkdir(parents=True)
    monkeypatch.setattr(evaluate, "KEPT", 2)
    paths.TEST.rename(paths.VALIDATION)
    few = {"split": "validation", "episodes": EPISODES, "latency_episodes": 3, "bootstrap": 200}
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


def with_settings(params: Params, settings: dict[str, Any]) -> Params:
    """The parameters with other settings of the stage, without a check of their bounds."""
    return params.model_copy(update={"evaluate": params.evaluate.model_copy(update=settings)})


def test_a_killed_run_leaves_what_it_has_played_to_the_next(short, monkeypatch, capsys):
    """What was played counts only for the same models."""
    play_as(monkeypatch, before=careless(), after=KILLED)
    with pytest.raises(KeyboardInterrupt):
        recorded(evaluate, short)
    play_as(monkeypatch, before=KILLED, after=fields_expert())
    with pytest.raises(KeyboardInterrupt):  # its episodes one at a time aren't kept
        recorded(evaluate, short)
    assert capsys.readouterr().err.count("played by the run before") == 2
    (evaluate.PLAYED / "before-greedy.json").write_text("{")  # a damaged one is played again
    with pytest.raises(KeyboardInterrupt):
        recorded(evaluate, short)
    assert "played by the run before" not in capsys.readouterr().err
    (paths.MERGED / "config.json").write_text("{}")
    with pytest.raises(KeyboardInterrupt):
        recorded(evaluate, short)
    assert "played by the run before" not in capsys.readouterr().err


def test_an_expert_is_measured_to_be_better_than_a_careless_policy(project, capsys):
    run = recorded(evaluate, project)
    told = json.loads(paths.EVALUATION.read_text())
    assert (told["n"], told["split"]) == (EPISODES, "validation")
    assert told["after"]["f1_greedy"] > 0.9
    assert told["reward"]["ci95"][0] > 0
    assert told["reward"]["mode"] == "sampled"
    assert told["after"]["greedy"]["exact_match"] > told["before"]["greedy"]["exact_match"]
    assert told["improvement"] in capsys.readouterr().out
    assert run.metrics["evaluate/f1_greedy_after"] == told["after"]["f1_greedy"]
    assert run.artifacts == [paths.EVALUATION, evaluate.EPISODES, paths.TRANSCRIPTS]

    episodes = pd.read_parquet(evaluate.EPISODES)
    assert len(episodes) == 2 * 2 * EPISODES  # two models; greedy and sampled
    keyed = episodes.set_index(["model", "problem_id", "mode"]).sort_index()
    before, after = keyed.loc["before"], keyed.loc["after"]
    assert before.index.equals(after.index)  # the same problems and modes
    assert set(episodes.groupby("difficulty").size()) == {2 * 2 * EPISODES // 3}
    sampled = after.xs("sampled", level="mode")
    assert told["after"]["reward_mean"] == pytest.approx(sampled["reward"].mean())

    lines = [json.loads(line) for line in paths.TRANSCRIPTS.read_text().splitlines()]
    played = set(episodes.loc[episodes["difficulty"] == "easy", "problem_id"])
    ids = [name for name in pd.read_parquet(paths.VALIDATION)["problem_id"] if name in played]
    shown = [x["problem_id"] for x in lines if x["difficulty"] == "easy" and x["model"] == "after"]
    assert shown == ids[:2]  # the first of the data, not the best
    assert len(lines) == 2 * 3 * 2
    assert any(frame["parent"] is not None for line in lines for frame in line["frames"])


def test_void_episodes_of_a_model_stop_the_stage_and_keep_the_old_report(short, monkeypatch):
    play_as(monkeypatch, before=careless(), after=FAILING)
    paths.EVALUATION.parent.mkdir()
    paths.EVALUATION.write_text("old")
    with pytest.raises(StageError, match=r"all episodes of after are void"):
        recorded(evaluate, short)
    assert paths.EVALUATION.read_text() == "old"
    assert not evaluate.EPISODES.exists()


def test_an_outage_among_the_lone_episodes_costs_the_latency_alone(short, monkeypatch, caplog):
    play_model, alone = evaluate.play_model, [0, 2]

    def dying(model: Any, url: str, specs: Any, *args: Any, **options: Any) -> Any:
        """One at a time, play so many episodes of each model; then the environment is gone."""
        if options["sessions"] > 1:
            return play_model(model, url, specs, *args, **options)
        if left := alone.pop(0):
            play_model(model, url, specs[:left], *args, **options)
        raise EpisodeError("the environment plays no more")

    monkeypatch.setattr(evaluate, "play_model", dying)
    recorded(evaluate, short)
    told = json.loads(paths.EVALUATION.read_text())
    assert told["after"]["f1_greedy"] > 0.9
    for model, left in (("before", 0), ("after", 2)):
        latency = told[model]["latency"]["one_at_a_time"]
        assert (latency["episodes"], latency["p50_s"] is None) == (left, left == 0)
        assert ("result/latency_p50_s" in runs.result_metrics(told[model])) == (left > 0)
        (warning,) = [text for text in caplog.messages if f"{model}, one at a time" in text]
        assert f"only {left} of 3 episodes count for the latency" in warning
        assert "the environment plays no more" in warning


@pytest.fixture
def params(server_params: Params, mlflow_store: Path) -> Params:
    few = {"episodes": 20, "latency_episodes": 2, "bootstrap": 100}
    return changed(server_params, evaluate=few, evaluate_model={"prompt_price": 2.0})


def play(params: Params, endpoint: FakeServer) -> Path:
    """Measure the model behind the endpoint."""
    return evaluate_model.measure_model(params, Recorder(), "some/model", endpoint.url)  # type: ignore[arg-type]


def test_an_endpoint_plays_the_same_problems_and_its_cost_is_told(served_folder, params):
    short = with_settings(params, {"episodes": 6})  # two problems of each difficulty
    run: Any = Recorder()
    said: list[str] = []
    with serving() as endpoint:
        endpoint.reply = lambda body: "```repl\nFINAL([])\n```"
        path = evaluate_model.measure_model(short, run, "some/model", endpoint.url, said.append)
    # The estimate: 2 episodes and two first questions used 40 and 12 tokens; 12 episodes follow.
    assert "12 episodes follow, with about 240 prompt tokens and 72 output tokens" in said[0]
    told = json.loads(path.read_text())
    assert path == evaluate_model.REPORTS / "some-model.json"
    # 6 greedy, 6 sampled, 2 alone, one turn each, and two first questions; the endpoint counts 10
    # and 3 tokens a request.
    assert [told["n"], told["cost"]["episodes"], told["cost"]["requests"]] == [6, 14, 16]
    assert told["cost"]["total"] == pytest.approx(16 * 10 * 2.0 / 1e6)
    assert run.metrics["result/tokens_per_episode"] == pytest.approx(13 * 16 / 14)
    tokens = {"sampled_per_episode": 3 * 16 / 14, "prompt_per_episode": 10 * 16 / 14}
    assert told["tokens"] == pytest.approx(tokens)
    assert run.metrics["result/f1"] == 0.0
    assert run.metrics["result/latency_p50_s"] > 0
    assert run.artifacts == [path]


def test_a_wait_is_told_and_no_count_is_no_0(served_folder, params, monkeypatch, capsys):
    for name in ("FIRST_S", "POLL_S"):
        monkeypatch.setattr(progress, name, 0.01)
    short, run = with_settings(params, {"episodes": 6}), Recorder()
    with serving() as endpoint:
        endpoint.reply = lambda body: "```repl\nFINAL([])\n```"
        endpoint.usage, endpoint.pause_s = None, 0.2
        path = evaluate_model.measure_model(short, run, "some/model", endpoint.url)  # type: ignore[arg-type]
    output = capsys.readouterr()
    assert f"waiting for {endpoint.url}, a few seconds so far" in output.err
    assert "with tokens that the endpoint doesn't count" in output.out
    told = json.loads(path.read_text())
    counts = ("prompt_tokens", "completion_tokens", "total", "per_episode")
    assert [told["cost"][name] for name in counts] == [None] * 4
    assert set(told["tokens"].values()) == {None}
    assert (told["cost"]["requests"], run.metrics["result/failed_requests"]) == (16, 0)
    assert not {"result/tokens_per_episode", "result/cost_per_episode"} & run.metrics.keys()


def test_the_command_refuses_problems_of_other_settings_and_no_problems(served_folder, params):
    write_params(params)
    paths.TEST.unlink()
    for told in ("data/problems/test.parquet is missing. Run `rlm prep", "Run `rlm prepare` first"):
        done = CliRunner().invoke(cli.app, ["evaluate", "--model", "some/model"])
        assert done.exit_code == StageError.exit_code
        assert told in done.stderr
        Path("data/report.json").write_text('{"settings_sha256": "other", "source": "files"}')
    store = runs.client(runs.tracking_uri())
    assert not store.search_runs([one.experiment_id for one in store.search_experiments()])


def test_an_endpoint_without_a_model_is_refused() -> None:
    done = CliRunner().invoke(cli.app, ["evaluate", "--base-url", "http://127.0.0.1:1/v1"])
    assert done.exit_code == ConfigError.exit_code
    assert "--base-url needs --model" in done.stderr


def test_an_endpoint_that_refuses_is_told_in_its_own_words(served_folder, params):
    with serving() as endpoint:
        endpoint.plan = [400] * 200
        endpoint.error = {"message": "Use 'max_completion_tokens' instead"}
        with pytest.raises(StageError, match="Use 'max_completion_tokens' instead"):
            play(params, endpoint)
        assert len(endpoint.bodies) == 1  # nothing was played


def lose_some(endpoint: FakeServer, every: int) -> None:
    """After two questions, refuse one turn in `every`; an episode has one turn."""
    endpoint.plan = [200, 200, *([400] + [200] * (every - 1)) * 20]
    endpoint.error = {"message": "flagged"}
    endpoint.reply = lambda body: "```repl\nFINAL([])\n```"


def test_a_model_that_lost_many_episodes_is_not_measured(served_folder, params):
    with serving() as endpoint:
        lose_some(endpoint, every=10)
        told = r"2 of 20 episodes of some/model \(greedy\)"
        with pytest.raises(StageError, match=told) as caught:
            play(params, endpoint)
    assert "(first: the policy failed). The endpoint said: Error code: 400" in str(caught.value)
    assert "flagged. Lower evaluate_model.concurrency" in str(caught.value)
    assert [path.name for path in evaluate_model.REPORTS.iterdir()] == ["episodes"]


def test_the_command_measures_a_model_that_lost_few_and_warns(served_folder, params, caplog):
    write_params(params)
    with serving() as endpoint:
        lose_some(endpoint, every=20)
        given = ["evaluate", "--model", "some/model", "--base-url", endpoint.url]
        done = CliRunner().invoke(cli.app, given)
    assert done.exit_code == 0, done.output
    assert "some/model: F1 0.000 greedy" in done.output.splitlines()[-1]
    assert "(20 problems; reports/measured/some-model.json)" in done.output
    told = json.loads((evaluate_model.REPORTS / "some-model.json").read_text())
    assert told["void_rate"] == pytest.approx(evaluate_model.MOST_VOID)
    assert "1 of 20 episodes of some/model (sampled) are void" in caplog.text
