"""The path of a model of the Hub: quantised, shown demonstrations, trained, merged.

Its weights are random and its steps few: it asserts what is written, and not learning.
"""

from __future__ import annotations

import json
from contextlib import chdir
from pathlib import Path

import pytest
import torch
from helpers.problem_files import write_problems
from helpers.random_model import save_qwen
from helpers.recorder import Recorder
from safetensors.torch import load_file, save_file

from agent.policies.hf_policy import load_model
from env.problems.store import ProblemStore
from tasks import export, train, warmstart
from tasks.config import resolve
from tasks.tracking import runs

pytestmark = [
    pytest.mark.usefixtures("trainer_imported"),
    pytest.mark.xdist_group("trainer"),  # so that one process imports TRL
]
ROOT = Path(__file__).parents[2]
FEW = [
    "threads=1",
    "model.quantisation=nf4",
    "warmstart.kind=sft",
    "warmstart.sft={problems: 2, batch_tokens: 2048}",
    "train.curriculum={levels: [easy], target: easy}",
    "train={steps: 1, problems_per_step: 1, group_size: 2, evaluate_every: 0, processes: 1}",
    "generation={max_turn_tokens: 320, max_frame_tokens: 1024}",
    "export.prompts=2",
]


def test_quantised_taught_trained_and_merged(
    served_folder: Path, server_problems: ProblemStore, mlflow_store: Path
) -> None:
    with chdir(ROOT):
        params = resolve(overrides=[f"model.source={save_qwen(served_folder / 'source')}", *FEW])
    for split in ("train", "validation"):
        ids = server_problems.ids(split, "easy")[:4]
        write_problems(f"data/problems/{split}.parquet", map(server_problems.get, ids))
    run = Recorder()
    base = warmstart.run(params, run)  # type: ignore[arg-type]
    assert json.loads((base / "provenance.json").read_text())["from"] == params.model.source
    config = json.loads((base / "adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == params.model.source
    assert run.metrics["warmstart/loss"] > 0
    model, _ = load_model(base)
    assert model.active_peft_config.target_modules == set(params.train.lora.targets)
    quantised = {type(module).__name__ for module in model.modules()}
    assert "Linear4bit" in quantised
    twin, _ = load_model(base / "twin")
    assert all(weight.dtype == torch.float32 for weight in twin.parameters())
    # Demonstrations have long turns; of a model that knows nothing, short ones are as good.
    short = params.generation.model_copy(update={"max_turn_tokens": 16})
    with runs.stage_run("train", params) as training:
        adapter = train.run(params.model_copy(update={"generation": short}), training)

    # Its weights are changed: episodes of a model so little taught earn nothing.
    weights = adapter / "adapter_model.safetensors"
    moved = {name: weight + 0.02 for name, weight in load_file(weights).items()}
    save_file(moved, weights, metadata={"format": "pt"})
    with runs.stage_run("export", params) as exporting:
        merged = export.run(params, exporting)
    assert (merged / "model.safetensors").is_file()
