"""A 4-bit base from its making to the merged model, and the merges that would damage it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.random_model import qwen_trainer, save_qwen, write_adapter, write_base
from helpers.recorder import Recorder

from agent.errors import ExportError
from agent.models.chat_template import ChatFormat
from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.rollouts.engine import play
from agent.settings import GenerationSettings
from agent.training import checkpoints
from agent.training.export import (
    LIMITS,
    Record,
    error_limit,
    judge,
    measure,
    observe,
    relative_errors,
)
from agent.training.merge import merge
from env.models import Message
from tasks import export
from tasks.config.params import Params
from tasks.evaluate import choose

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.usefixtures("trainer_imported"),
    pytest.mark.xdist_group("transformers"),  # so that one process imports it
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model before it is quantised; read only."""
    return save_qwen(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def base(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 4-bit base that computes in float32, and an adapter beside it; read only."""
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patched:
        write_base(patched, source, folder / "base", torch.float32)
    write_adapter(folder / "base", folder / "adapter")
    return folder / "base"


def observed(base: Path, adapter: Path) -> tuple[Record, float]:
    """Record of the live model, and the effect of its adapter."""
    model, tokenizer = load_model(base, adapter=adapter)
    chat = ChatFormat(tokenizer)
    prompts = [
        chat.first([Message(role="user", content=f"What does {name} score on Mirbex?")])
        for name in ("Kalvot", "Tonzid")
    ]
    live = observe(model, prompts, stop_ids=sorted(chat.stop_ids), max_new_tokens=12)
    return live, max(relative_errors(live, load_model(base)[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_merge_onto_the_twin_behaves_like_the_4_bit_model_and_its_adapter(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    base = write_base(monkeypatch, source, tmp_path / "base", dtype)
    adapter = write_adapter(base, tmp_path / "adapter")
    live, effect = observed(base, adapter)
    arithmetic = str(dtype).removeprefix("torch.")
    assert live.dtype == arithmetic
    form = "bfloat16" if dtype == torch.bfloat16 else "float16"
    merge(base, adapter, tmp_path / "merged", dtype=form)
    found = measure(live, load_model(tmp_path / "merged", dtype=dtype)[0])
    assert judge(found, effect, error_limit(form, arithmetic)) == []
    assert effect > 0.05


def test_other_merges_would_damage_the_model_and_are_refused(
    source: Path, base: Path, tmp_path: Path
) -> None:
    adapter = base.with_name("adapter")
    live, effect = observed(base, adapter)
    limit = LIMITS["float16"]

    def refused(folder: Path) -> float:
        found = measure(live, load_model(folder)[0])
        (wrong, *_) = judge(found, effect, limit)
        assert wrong.startswith("logits are off by")
        return found.logit_error

    # Into the 4-bit weights, which rounds them again.
    model, tokenizer = load_model(base, adapter=adapter)
    with pytest.warns(UserWarning, match="Merge lora module to 4-bit"):
        naive = model.merge_and_unload()
    naive.dequantize(dtype=torch.float32).save_pretrained(
        tmp_path / "naive", save_original_format=False
    )
    tokenizer.save_pretrained(tmp_path / "naive")
    assert refused(tmp_path / "naive") > 10 * limit
    # Onto the weights from before the quantisation.
    merge(source, adapter, tmp_path / "unquantised", dtype="float16")
    assert refused(tmp_path / "unquantised") > 10 * limit
    # Without a twin there is nothing that a merge may use.
    shutil.copytree(base, tmp_path / "alone", ignore=shutil.ignore_patterns("twin"))
    with pytest.raises(ExportError, match=r"quantised weights and no twin.*stage warmstart"):
        merge(tmp_path / "alone", adapter, tmp_path / "merged", dtype="float16")
    assert not (tmp_path / "merged").exists()


KILLED = """
import os, signal
from pathlib import Path
import torch
from agent.policies.hf_policy import load_model
from helpers.random_model import play_qwen, qwen_trainer

def play(model, step):
    if step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return play_qwen(model, step)

torch.set_num_threads(1)
model, _ = load_model(Path("models/base"))
qwen_trainer(Path("models/checkpoints"), model, play=play).resume(None)
"""
"""Training of three steps that is killed in the third."""


def test_a_4_bit_base_with_an_adapter_is_played_killed_resumed_merged_and_checked(
    base: Path,
    served_folder: Path,
    server_url: str,
    server_params: Params,
    monkeypatch: pytest.MonkeyPatch,
    warm: str,
) -> None:
    monkeypatch.setattr(sys, "executable", warm)
    shutil.copytree(base, "models/base")
    write_adapter(export.BASE, export.BASE / "adapter")  # as demonstrations leave one
    generation = GenerationSettings(max_turn_tokens=8, max_frame_tokens=2048, temperature=0.0)
    model, tokenizer = load_model(export.BASE)
    specs = choose(export.TEST, 4, 0)
    policy = TransformersPolicy(model, tokenizer, generation)
    assert [tree.void for tree in play(policy, server_url, specs, sessions=4)] == [None] * 4

    folder = Path("models/checkpoints")
    Path("killed.py").write_text(KILLED)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    killed = subprocess.run([warm, "-m", "killed"], env={**os.environ, "PYTHONPATH": path})
    assert killed.returncode == 137
    assert list(checkpoints.steps(folder)) == [2]
    start = checkpoints.choose(folder, {"a": 1})
    log: list[Any] = []
    trainer = qwen_trainer(folder, load_model(export.BASE)[0], log)
    trainer.resume(start.checkpoint)
    assert [step for step, _ in log] == [3]
    assert log[0][1]["train/logprob_mismatch_max"] < 1e-4
    trainer.save_result(Path("models/adapter"))

    data = server_params.model_dump(by_alias=True)
    data["export"]["prompts"] = 4
    data["evaluate"]["generation"] = generation.model_dump()
    data["model"] = {"source": "org/qwen", "quantisation": "nf4"}
    data["warmstart"]["kind"] = "none"
    recorder: Any = Recorder()
    export.run(Params.model_validate(data | {"threads": 1}), recorder)
    report = json.loads(export.REPORT.read_text())
    assert report["wrong"] == []
    assert report["logit_error"] < report["limit"] == LIMITS["float16"] < report["effect"]
    assert report["episode"]["void"] is None
    merged, _ = load_model(export.MERGED)
    assert not getattr(merged, "is_quantized", False)
