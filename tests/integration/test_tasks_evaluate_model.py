"""One model by itself: at an endpoint, in a folder, in the registry."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_endpoint import FakeServer, serving
from helpers.recorder import Recorder

from agent.settings import GenerationSettings
from tasks import evaluate_model
from tasks.config.params import Params
from tasks.config.settings import EvaluateModelSettings
from tasks.errors import ConfigError, StageError


@pytest.fixture
def params(
    server_params: Params, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mlflow_store: Path
) -> Params:
    few = {"episodes": 20, "latency_episodes": 2, "bootstrap": 100}
    told = server_params.model_dump(by_alias=True, mode="json")
    return Params.model_validate(
        told | {"evaluate": told["evaluate"] | few, "evaluate_model": {"prompt_price": 2.0}}
    )


@pytest.fixture
def short(params: Params) -> Params:
    """The same with two problems of each difficulty, below the bound of the setting."""
    evaluate = params.evaluate.model_copy(update={"episodes": 6})
    return params.model_copy(update={"evaluate": evaluate})


def play(params: Params, endpoint: FakeServer) -> Path:
    """Measure the model behind the endpoint."""
    return evaluate_model.measure_model(params, Recorder(), "some/model", endpoint.url)  # type: ignore[arg-type]


def test_an_endpoint_plays_the_same_problems_and_its_cost_is_told(
    served_folder: Path, short: Params
) -> None:
    run = Recorder()
    with serving() as endpoint:
        endpoint.reply = lambda body: "```repl\nFINAL([])\n```"
        said: list[str] = []
        path = evaluate_model.measure_model(
            short,
            run,
            "some/model",
            endpoint.url,
            said.append,  # type: ignore[arg-type]
        )
    # The estimate: 2 episodes and two first questions used 40 and 12 tokens; 12 episodes follow.
    (estimate,) = said
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
    assert run.metrics["result/f1_greedy"] == 0.0
    assert run.metrics["result/latency_p50_s"] > 0
    assert run.artifacts == [path]


def test_the_cost_is_shared_by_the_episodes_that_were_played(
    served_folder: Path, short: Params
) -> None:
    many = short.evaluate.model_copy(update={"latency_episodes": 50})
    with serving() as endpoint:
        endpoint.reply = lambda body: "```repl\nFINAL([])\n```"
        told = json.loads(play(short.model_copy(update={"evaluate": many}), endpoint).read_text())
    # 6 greedy, 6 sampled, and no more than 6 problems that can be played alone.
    assert told["cost"]["episodes"] == 18


def test_an_endpoint_that_is_wrong_is_one_error(served_folder: Path, params: Params) -> None:
    with serving() as endpoint:
        endpoint.plan = [401] * 200
        with pytest.raises(StageError, match="OPENAI_API_KEY"):
            evaluate_model.measure_model(params, Recorder(), "some/model", endpoint.url)  # type: ignore[arg-type]


def test_an_endpoint_that_refuses_is_told_in_its_own_words(
    served_folder: Path, params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        evaluate_model.evaluate, "play_model", lambda *a, **k: pytest.fail("it played")
    )
    with serving() as endpoint:
        endpoint.plan = [400] * 200
        endpoint.error = {"message": "Use 'max_completion_tokens' instead"}
        with pytest.raises(StageError, match="Use 'max_completion_tokens' instead"):
            play(params, endpoint)
        assert len(endpoint.bodies) == 1


def test_the_settings_of_requests_reach_the_endpoint() -> None:
    settings = EvaluateModelSettings(sampling="openai", template_kwargs={"enable_thinking": False})
    with serving() as endpoint:
        counted = evaluate_model.CountedEndpoint(endpoint.url, "some/model", settings)
        counted.check(GenerationSettings())
        counted.close()
    for body in endpoint.bodies:
        assert body["chat_template_kwargs"] == {"enable_thinking": False}
        assert "top_k" not in body


def test_what_only_a_sampled_turn_may_not_ask_is_found_before_anything_is_played(
    served_folder: Path, params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        evaluate_model.evaluate, "play_model", lambda *a, **k: pytest.fail("it played")
    )
    with serving() as endpoint:
        endpoint.plan = [200, 400]
        with pytest.raises(StageError, match="a test question"):
            play(params, endpoint)


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
    assert not evaluate_model.REPORTS.exists()


def test_a_model_that_lost_few_episodes_is_measured_with_a_warning(
    served_folder: Path, params: Params, caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as endpoint:
        lose_some(endpoint, every=20)
        told = json.loads(play(params, endpoint).read_text())
    assert told["void_rate"] == pytest.approx(evaluate_model.MOST_VOID)
    assert "1 of 20 episodes of some/model (sampled) are void" in caplog.text


def test_an_address_without_a_scheme_is_one_error(served_folder: Path, params: Params) -> None:
    with pytest.raises(StageError, match="is not an endpoint's address"):
        evaluate_model.measure_model(params, Recorder(), "some/model", "localhost:8000/v1")  # type: ignore[arg-type]


def test_episodes_in_flight_are_as_many_as_requests(served_folder: Path, short: Params) -> None:
    few = short.evaluate_model.model_copy(update={"concurrency": 3})
    with serving() as endpoint:
        endpoint.reply = lambda body: "```repl\nx = 1\n```"
        play(short.model_copy(update={"evaluate_model": few}), endpoint)
    # Two first questions, and two episodes alone.
    after = endpoint.bodies[2 + 2 * short.env.limits.max_turns :]
    roots = [body["messages"][1]["content"] for body in after]
    # The first three episodes are over before a fourth one begins.
    assert len(set(roots[: 3 * short.env.limits.max_turns])) == 3


def test_no_session_is_idle_for_too_long_while_the_endpoint_is_slow(
    served_folder: Path, params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RLM_ENV_URL")
    monkeypatch.setattr(evaluate_model.evaluate, "play_alone", lambda *_, **__: [])
    hasty = params.env.model_copy(update={"idle_timeout_s": 1.0})
    slow = threading.Event()

    def reply(body: dict[str, Any]) -> str:
        if len(endpoint.bodies) > 2 and not slow.is_set():
            slow.set()
            time.sleep(2)
        return "```repl\nFINAL([])\n```"

    with serving() as endpoint:
        endpoint.reply = reply
        told = json.loads(play(params.model_copy(update={"env": hasty}), endpoint).read_text())
    assert slow.is_set()
    assert told["void_rate"] == 0


def test_a_space_is_not_built_anew_to_be_patient(params: Params) -> None:
    space = params.deploy.model_copy(update={"target": "space"})
    params = params.model_copy(update={"deploy": space})
    assert evaluate_model.patient(params) == params


@pytest.mark.parametrize("name", ["rlm", "models:/rlm", "models:/rlm/latest", "no/such/folder"])
def test_what_names_no_model_is_said(name: str) -> None:
    with pytest.raises(ConfigError, match="models:/NAME/VERSION"):
        evaluate_model.folder_of(name)


@pytest.mark.parametrize("name", ["models:/rlm/7", "models:/rlm@champion"])
def test_a_version_that_is_not_there_is_one_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_store: Path
) -> None:
    with pytest.raises(StageError, match="rlm"):
        evaluate_model.folder_of(name)


def test_a_folder_is_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert evaluate_model.folder_of(str(tmp_path)) == tmp_path
