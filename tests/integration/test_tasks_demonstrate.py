"""Warm start by demonstrations: a base with an adapter that every stage loads."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.changed import changed
from helpers.fake_endpoint import serving
from helpers.problem_files import write_problems
from helpers.random_model import save_qwen
from helpers.recorder import Recorder, recorded
from safetensors.torch import load_file, save_file

from agent.demonstrations import unsloth_process
from agent.models import model_files
from agent.policies.base import TurnRequest
from agent.policies.hf_policy import load_model
from benchmarks.exploits.fields_expert import fields_expert
from env.models import Message
from env.problems.store import ProblemStore
from tasks import export, paths, train, warmstart
from tasks.config.params import Params
from tasks.errors import StageError
from tasks.tracking import runs
from tasks.training import demonstrate, problem_data

pytestmark = [
    pytest.mark.usefixtures("trainer_imported"),
    pytest.mark.xdist_group("stages"),  # which import TRL once
]


STANDIN = Path(__file__).parents[1] / "helpers/unsloth_standin"


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
        recorded(warmstart, strict)
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
        warmstart.run(long, Dies())
    assert demonstrate.CHECKPOINTS.exists()
    recorded(warmstart, long)
    assert "resuming after step 1 " in capsys.readouterr().err
    assert paths.BASE.exists()
    assert not demonstrate.CHECKPOINTS.exists()


def test_training_plays_what_was_not_shown_unless_too_little_is_left(params, server_problems):
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


def test_a_teacher_behind_an_api_teaches_with_its_good_episodes(params):
    forgotten, expert = demonstrate.choose(params)[0].question, fields_expert()

    def reply(body: dict) -> str:
        _, opening, *later = [message["content"] for message in body["messages"]]
        if forgotten in opening:
            return "I do not know."
        kind = "rlm" if "\ncontext: " in opening else "llm"
        talk = [Message(role="user", content=opening)]
        asked = TurnRequest((opening, 0), talk, depth=0, kind=kind, first=not later, seed=0)
        return expert.act([asked])[0].text

    with serving() as fake:
        fake.reply = reply
        teacher = {"teacher": "endpoint", "base_url": fake.url, "model": "teacher"}
        run = recorded(warmstart, changed(params, warmstart={"sft": teacher}))
    assert {body["model"] for body in fake.bodies} == {"teacher"}
    assert run.metrics["warmstart/shown_easy"] == 0.75
    assert run.metrics["warmstart/rows"] > 3
    model, _ = load_model(paths.BASE)
    weights = dict(model.named_parameters())
    assert any(weight.abs().max() > 0 for name, weight in weights.items() if "lora_B" in name)


def test_unsloth_trains_in_its_own_process_and_its_adapter_is_the_bases(params, monkeypatch, warm):
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
    quantised = changed(params, model={"backend": "unsloth", "quantisation": "nf4"})
    assert recorded(warmstart, quantised).metrics["warmstart/loss"] > 0
    assert "unsloth" not in sys.modules
    # Else this process would keep most of a small card, which the base was quantised on.
    assert events == ["freed, base written", "trained"]
    assert not Path("unsloth_compiled_cache").exists()
    model, _ = load_model(paths.BASE)  # as the trainer of GRPO loads it
    weights = dict(model.named_parameters())
    saved = load_file(paths.BASE / "adapter/adapter_model.safetensors")
    assert len(saved) == 28
    for name, value in saved.items():
        assert (weights[name.replace(".weight", ".default.weight")] == value).all()
        assert value.abs().max() > 0


def test_a_model_of_the_hub_is_quantised_taught_trained_and_merged(params, mlflow_store):
    """Its weights are random and its steps few: what is written counts, and not learning."""
    few = {"steps": 1, "problems_per_step": 1, "group_size": 2}
    params = changed(params, model={"quantisation": "nf4"}, train=few, export={"prompts": 2})
    assert recorded(warmstart, params).metrics["warmstart/loss"] > 0
    assert json.loads((paths.BASE / "provenance.json").read_text())["from"] == params.model.source
    config = json.loads((paths.BASE / "adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == params.model.source
    model, _ = load_model(paths.BASE)
    assert model.active_peft_config.target_modules == set(params.train.lora.targets)
    assert "Linear4bit" in {type(module).__name__ for module in model.modules()}
    twin, _ = load_model(paths.BASE / "twin")
    assert all(weight.dtype == torch.float32 for weight in twin.parameters())
    # Demonstrations have long turns; of a model that knows nothing, short ones are as good.
    short = changed(params, generation={"max_turn_tokens": 16})
    with runs.stage_run("train", params) as training:
        weights = train.run(short, training) / "adapter_model.safetensors"

    # Its weights are changed: episodes of a model so little taught earn nothing.
    moved = {name: weight + 0.02 for name, weight in load_file(weights).items()}
    save_file(moved, weights, metadata={"format": "pt"})
    with runs.stage_run("export", params) as exporting:
        assert (export.run(short, exporting) / "model.safetensors").is_file()
