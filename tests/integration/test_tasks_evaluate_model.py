"""One model by itself: at an endpoint, in a folder, in the registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.changed import changed, write_params
from helpers.fake_endpoint import FakeServer, serving
from helpers.recorder import Recorder
from typer.testing import CliRunner

from flows import cli
from tasks import evaluate_model
from tasks.config.params import Params
from tasks.errors import ConfigError, StageError


@pytest.fixture
def params(server_params: Params, mlflow_store: Path) -> Params:
    few = {"episodes": 20, "latency_episodes": 2, "bootstrap": 100}
    return changed(server_params, evaluate=few, evaluate_model={"prompt_price": 2.0})


def play(params: Params, endpoint: FakeServer) -> Path:
    """Measure the model behind the endpoint."""
    return evaluate_model.measure_model(params, Recorder(), "some/model", endpoint.url)  # type: ignore[arg-type]


def test_an_endpoint_plays_the_same_problems_and_its_cost_is_told(
    served_folder: Path, params: Params
) -> None:
    # Two problems of each difficulty, below the bound of the setting.
    few = params.evaluate.model_copy(update={"episodes": 6})
    short = params.model_copy(update={"evaluate": few})
    run: Any = Recorder()
    said: list[str] = []
    with serving() as endpoint:
        endpoint.reply = lambda body: "```repl\nFINAL([])\n```"
        path = evaluate_model.measure_model(short, run, "some/model", endpoint.url, said.append)
    # The estimate: 2 episodes and two first questions used 40 and 12 tokens; 12 episodes follow.
    estimate, _ = said
    assert "12 episodes follow, with about 240 prompt tokens and 72 output tokens" in estimate
    told = json.loads(path.read_text())
    assert path == evaluate_model.REPORTS / "some-model.json"
    assert told["n"] == 6
    # 6 greedy, 6 sampled, 2 alone, one turn each, and two first questions; the endpoint counts 10
    # and 3 tokens a request.
    assert told["cost"]["episodes"] == 14
    assert told["cost"]["requests"] == 16
    assert told["cost"]["total"] == pytest.approx(16 * 10 * 2.0 / 1e6)
    assert run.metrics["result/tokens_per_episode"] == pytest.approx(13 * 16 / 14)
    assert told["tokens"] == pytest.approx(
        {"sampled_per_episode": 3 * 16 / 14, "prompt_per_episode": 10 * 16 / 14}
    )
    assert run.metrics["result/f1"] == 0.0
    assert run.metrics["result/latency_p50_s"] > 0
    assert run.artifacts == [path]


def test_the_command_refuses_problems_of_other_settings(
    served_folder: Path, params: Params
) -> None:
    write_params(params)
    Path("data/report.json").write_text('{"settings_sha256": "other", "source": "files"}')
    done = CliRunner().invoke(cli.app, ["evaluate", "--model", "some/model"])
    assert done.exit_code == StageError.exit_code
    assert "Run `rlm prepare` first" in done.stderr


def test_an_endpoint_without_a_model_is_refused() -> None:
    done = CliRunner().invoke(cli.app, ["evaluate", "--base-url", "http://127.0.0.1:1/v1"])
    assert done.exit_code == ConfigError.exit_code
    assert "--base-url needs --model" in done.stderr


def test_an_endpoint_that_refuses_is_told_in_its_own_words(
    served_folder: Path, params: Params
) -> None:
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


def test_a_model_that_lost_many_episodes_is_not_measured(
    served_folder: Path, params: Params
) -> None:
    with serving() as endpoint:
        lose_some(endpoint, every=10)
        with pytest.raises(
            StageError, match=r"2 of 20 episodes of some/model \(greedy\)"
        ) as caught:
            play(params, endpoint)
    assert "(first: the policy failed). The endpoint said: Error code: 400" in str(caught.value)
    assert "flagged. Lower evaluate_model.concurrency" in str(caught.value)
    assert [path.name for path in evaluate_model.REPORTS.iterdir()] == ["episodes"]


def test_the_command_measures_a_model_that_lost_few_episodes_with_a_warning(
    served_folder: Path, params: Params, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_sessions_outlast_a_slow_model_except_on_a_space_which_would_be_rebuilt() -> None:
    hasty, space = Params(), changed(Params(), deploy={"target": "space"})
    assert evaluate_model.patient(hasty).env.idle_timeout_s == evaluate_model.PATIENCE_S
    assert evaluate_model.patient(space) == space
