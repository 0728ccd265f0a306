"""Warm start by demonstrations: a base with an adapter that every stage loads."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.changed import changed
from helpers.fake_endpoint import serving
from helpers.problem_files import write_problems
from helpers.random_model import qwen, save_qwen, tokenizer
from helpers.recorder import Recorder
from safetensors.torch import load_file

from agent.demonstrations import unsloth_process
from agent.demonstrations.demonstrator import Demonstrator
from agent.models import model_files
from agent.policies.base import FrameKey, TurnReply, TurnRequest
from agent.policies.conversations import Conversations
from agent.policies.hf_policy import load_model
from env.problems.store import ProblemStore
from tasks import paths, warmstart
from tasks.config.params import Params
from tasks.errors import StageError
from tasks.training import demonstrate, problem_data

pytestmark = [
    pytest.mark.usefixtures("trainer_imported"),
    pytest.mark.xdist_group("trainer"),  # so that one process imports TRL
]


STANDIN = Path(__file__).parents[1] / "helpers/unsloth_standin"


class Written(Demonstrator):
    """The demonstrator, whose texts are kept by the conversation that they answer."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.texts: dict[str, str] = {}
        self._talks: dict[FrameKey, list[str]] = {}

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        replies = super().act(requests)
        for request, reply in zip(requests, replies, strict=True):
            talk = self._talks.setdefault(request.key, [])
            talk += [message.content for message in request.messages]
            self.texts[json.dumps(talk)] = reply.text
            talk.append(reply.text)
        return replies


@pytest.fixture
def params(served_folder: Path, server_problems: ProblemStore, server_params: Params) -> Params:
    """Settings of a tiny model; training problems are data of the working folder."""
    ids = server_problems.ids("train", "easy")[:4]
    write_problems("data/problems/train.parquet", map(server_problems.get, ids))
    save_qwen(Path("tiny"))
    return changed(
        server_params,
        model={"source": "tiny"},
        warmstart={"kind": "sft", "sft": {"problems": 4, "epochs": 1, "batch_tokens": 2048}},
        generation={"max_turn_tokens": 480, "max_frame_tokens": 1536},
        train={"curriculum": {"levels": ["easy"], "target": "easy"}},
    )


def test_without_good_episodes_no_base_is_written(params: Params) -> None:
    strict = changed(params, warmstart={"sft": {"min_reward": 1.0}})
    with pytest.raises(StageError, match="none of 4 demonstrations is good enough"):
        warmstart.run(strict, Recorder())  # type: ignore[arg-type]
    assert not paths.BASE.exists()


class Dies(Recorder):
    """A run that is killed in its second step."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if step == 2:
            raise KeyboardInterrupt


def test_a_killed_training_goes_on_and_leaves_the_base_alone(params, monkeypatch, capsys):
    monkeypatch.setattr("agent.demonstrations.supervised.SAVE_EVERY", 1)
    long = changed(params, warmstart={"sft": {"epochs": 3}})
    with pytest.raises(KeyboardInterrupt):
        warmstart.run(long, Dies())  # type: ignore[arg-type]
    assert demonstrate.CHECKPOINTS.exists()
    warmstart.run(long, Recorder())  # type: ignore[arg-type]
    assert "resuming after step 1 " in capsys.readouterr().err
    assert paths.BASE.exists()
    assert not demonstrate.CHECKPOINTS.exists()


def test_training_plays_what_was_not_shown_unless_too_little_is_left(
    params: Params, server_problems: ProblemStore
) -> None:
    ids = set(server_problems.ids("train", "easy"))
    write_problems(paths.TRAIN, map(server_problems.get, ids))
    shown = {problem.problem_id for problem in demonstrate.choose(params)}

    def played(step: int, kind: str) -> set[str]:
        of = changed(params, train={"problems_per_step": step}, warmstart={"kind": kind})
        levels = problem_data.unseen(problem_data.read_problems(paths.TRAIN, ["easy"]), of)
        return {spec.problem_id for spec in levels["easy"]}

    assert len(shown) == 4
    assert played(len(ids) - 4, "sft") == ids - shown
    assert played(len(ids) - 3, "sft") == played(1, "none") == ids


def test_a_teacher_behind_an_api_teaches_with_its_good_episodes(
    params: Params, server_problems: ProblemStore
) -> None:
    problems = demonstrate.choose(params)
    writer = Written(problems, params.env)
    talks = Conversations(qwen(), tokenizer(), params.generation)
    demonstrate.play_all(params, writer, talks, problems)
    forgotten = problems[0].question

    def reply(body: dict) -> str:
        talk = [message["content"] for message in body["messages"]]
        if forgotten in "".join(talk):
            return "I do not know."
        return writer.texts.get(json.dumps(talk), "yes")

    run = Recorder()
    with serving() as fake:
        fake.reply = reply
        teacher = {"teacher": "endpoint", "base_url": fake.url, "model": "teacher"}
        taught = changed(params, warmstart={"sft": teacher})
        base = warmstart.run(taught, run)  # type: ignore[arg-type]
    assert {body["model"] for body in fake.bodies} == {"teacher"}
    assert run.metrics["warmstart/shown_easy"] == 0.75
    assert run.metrics["warmstart/rows"] > 3
    model, _ = load_model(base)
    weights = dict(model.named_parameters())
    assert any(weight.abs().max() > 0 for name, weight in weights.items() if "lora_B" in name)


def test_unsloth_trains_in_a_process_of_its_own_and_its_adapter_is_the_bases(
    params: Params, monkeypatch: pytest.MonkeyPatch, warm: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STANDIN))
    monkeypatch.setattr(sys, "executable", warm)
    monkeypatch.setattr(unsloth_process, "require_unsloth", lambda: None)
    events = []
    free, train = model_files.free_memory, unsloth_process.train_with_unsloth

    def freed() -> None:
        events.append("freed, base written" if any(Path("models").glob("*/twin")) else "freed")
        free()

    def trained(*args: Any, **named: Any) -> None:
        events.append("trained")
        train(*args, **named)

    monkeypatch.setattr(model_files, "free_memory", freed)
    monkeypatch.setattr(unsloth_process, "train_with_unsloth", trained)
    run = Recorder()
    quantised = changed(params, model={"backend": "unsloth", "quantisation": "nf4"})
    base = warmstart.run(quantised, run)  # type: ignore[arg-type]
    assert run.metrics["warmstart/loss"] > 0
    assert "unsloth" not in sys.modules
    # Else this process would keep most of a small card, which the base was quantised on.
    assert events == ["freed, base written", "trained"]
    assert not Path("unsloth_compiled_cache").exists()
    model, _ = load_model(base)  # as the trainer of GRPO loads it
    weights = dict(model.named_parameters())
    saved = load_file(base / "adapter/adapter_model.safetensors")
    assert len(saved) == 28
    for name, value in saved.items():
        assert (weights[name.replace(".weight", ".default.weight")] == value).all()
        assert value.abs().max() > 0
