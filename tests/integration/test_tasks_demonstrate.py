"""Warm start by demonstrations: a base with an adapter that every stage loads."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from helpers.fake_endpoint import serving
from helpers.recorder import Recorder
from helpers.tiny_qwen import save_qwen

from agent.policies.hf_policy import load_model
from env.problems.schema import to_row
from env.problems.store import ProblemStore
from tasks import warmstart
from tasks.config import Params
from tasks.errors import StageError

pytestmark = [
    pytest.mark.usefixtures("trainer_imported"),
    pytest.mark.xdist_group("transformers"),  # so that one process imports it
]


@pytest.fixture
def params(served_folder: Path, server_problems: ProblemStore, server_params: Params) -> Params:
    """Settings of a tiny model; training problems are data of the working folder."""
    ids = server_problems.ids("train", "easy")[:4]
    rows = [to_row(server_problems.get(name)) for name in ids]
    pd.DataFrame(rows).to_parquet("data/problems/train.parquet")
    save_qwen(Path("tiny"))
    data = server_params.model_dump(by_alias=True, mode="json")
    data["model"] = {"source": "tiny"}
    data["warmstart"] |= {"kind": "sft"}
    data["warmstart"]["sft"] |= {"problems": 4, "epochs": 1, "batch_tokens": 2048}
    data["train"]["generation"] |= {"max_turn_tokens": 480, "max_frame_tokens": 1536}
    data["train"]["curriculum"] |= {"levels": ["easy"], "target": "easy"}
    return Params.model_validate(data)


def changed(params: Params, **sft: object) -> Params:
    data = params.model_dump(by_alias=True, mode="json")
    data["warmstart"]["sft"] |= sft
    return Params.model_validate(data)


def test_the_base_gets_an_adapter_that_is_loaded_with_it(params: Params) -> None:
    run = Recorder()
    base = warmstart.run(params, run)  # type: ignore[arg-type]
    assert (base / "adapter/adapter_model.safetensors").is_file()
    assert json.loads((base / "provenance.json").read_text())["from"] == "tiny"
    model, _ = load_model(base)
    assert model.active_peft_config.target_modules == set(params.train.lora.targets)
    assert run.metrics["warmstart/shown_easy"] == 1.0
    assert run.metrics["warmstart/rows"] > 4
    assert run.metrics["warmstart/loss"] > 0


@pytest.mark.parametrize(
    ("sft", "reply", "told"),
    [
        ({"min_reward": 1.0}, None, "none of 4 demonstrations is good enough"),
        ({"teacher": "endpoint"}, "I do not know.", "none of 4 demonstrations is good enough"),
    ],
)
def test_without_good_episodes_no_base_is_written(
    params: Params, sft: dict[str, object], reply: str | None, told: str
) -> None:
    with serving() as fake:
        fake.reply = lambda body: reply
        sft = {"base_url": fake.url, "model": "teacher"} | sft
        with pytest.raises(StageError, match=told):
            warmstart.run(changed(params, **sft), Recorder())  # type: ignore[arg-type]
        assert bool(fake.bodies) == (reply is not None)
    assert not warmstart.BASE.exists()


def test_data_without_the_trained_levels_is_refused(params: Params) -> None:
    data = params.model_dump(by_alias=True, mode="json")
    data["train"]["curriculum"] |= {"levels": ["hard"], "target": "hard"}
    other = Params.model_validate(data)
    with pytest.raises(StageError, match=r"no problem of train\.curriculum\.levels"):
        warmstart.run(other, Recorder())  # type: ignore[arg-type]
