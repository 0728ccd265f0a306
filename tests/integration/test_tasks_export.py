"""The merged model against the live one; each kind of broken merge is caught.

Bases are untaught nano models: the check is about weights, not about skill.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.changed import changed
from helpers.random_model import write_adapter
from helpers.recorder import recorded
from helpers.untaught import untaught
from safetensors.torch import load_file, save_file

from agent.errors import ExportError
from agent.nano import teaching
from agent.nano.sizes import NanoModelSettings, NanoSettings
from agent.policies.hf_policy import load_model
from agent.training.export import MergeDifference, error_limit, faults, relative_error, top_logits
from agent.training.merge import merge
from tasks import export, paths
from tasks.config.params import Params
from tasks.errors import StageError

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it
LIMIT = 0.001


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `base`, and `adapter` whose weights are as large as after training."""
    folder = tmp_path_factory.mktemp("models")
    teaching.save(untaught(NanoSettings(model=NanoModelSettings(layers=2))), folder / "base")
    write_adapter(folder / "base", folder / "adapter")
    return folder


@pytest.fixture(scope="module")
def merged(models: Path) -> Path:
    """Base and adapter merged in float16; read only."""
    merge(models / "base", models / "adapter", models.with_name("merged"), dtype="float16")
    return models.with_name("merged")


def test_every_merged_weight_is_that_of_the_base_plus_the_adapter(models, merged):
    weights = load_file(merged / "model.safetensors")
    base = load_file(models / "base/model.safetensors")
    adapter = load_file(models / "adapter/adapter_model.safetensors")
    for name, weight in weights.items():
        expected = base[name].float()
        key = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{key}.lora_A.weight" in adapter:  # alpha equals the rank: the scale is 1
            expected += adapter[f"{key}.lora_B.weight"] @ adapter[f"{key}.lora_A.weight"]
        assert torch.equal(weight, expected.half()), name


NAN = float("nan")
SMALL_STEP = MergeDifference(0.0084, 0.0084, 20)


@pytest.mark.parametrize(
    ("found", "rest", "wrong"),
    [
        (MergeDifference(0.0004, 0.0004, 20), (0.05, LIMIT), ""),
        (MergeDifference(0.0004, 0.0004, 20), (0.0005, LIMIT), "would look the same"),
        # A small step from a trained adapter is no fault.
        (SMALL_STEP, (0.0064, 0.02, 0.3), ""),
        (SMALL_STEP, (0.0064, 0.02, 0.0064), "a merge without the adapter"),
        (SMALL_STEP, (0.0, 0.02, 0.3), "training changed nothing"),
        # Completions may differ at a tie only.
        (MergeDifference(0.0004, 0.0004, 19, ties=[0.0015]), (0.5, LIMIT), ""),
        (MergeDifference(0.0004, 0.0004, 18, ties=[0.0015, 0.2]), (0.5, LIMIT), "1 greedy comple"),
        (MergeDifference(NAN, NAN, 20), (0.5, LIMIT), "logits"),
        (MergeDifference(0.0, 0.0, 19, ties=[NAN]), (0.5, LIMIT), "greedy completions differ"),
    ],
)
def test_a_difference_is_judged_by_error_effect_and_ties(found, rest, wrong):
    told = faults(found, *rest)
    assert bool(told) == bool(wrong)
    assert wrong in " ".join(told)


def test_the_effect_is_measured_with_and_without_a_bases_adapter(models, tmp_path, monkeypatch):
    shutil.copytree(models / "base", tmp_path / "base")
    shutil.copytree(models / "adapter", tmp_path / "base/adapter")
    monkeypatch.setattr(paths, "BASE", tmp_path / "base")
    monkeypatch.setattr(export, "gather_prompts", lambda *_: ([[5, 6, 7, 8]], "p"))
    _, effect, whole_effect, _ = export.record_live(Params(), models / "adapter", "")
    assert effect == 0 < whole_effect  # training changed nothing, the adapter was there before


def test_a_shift_of_all_logits_is_no_error_and_hides_none() -> None:
    one = torch.tensor([[1.0, 2.0, 3.0]])
    assert relative_error(top_logits(one), one + 1000) == pytest.approx(0.0, abs=1e-4)
    assert relative_error(top_logits(one + 1000), torch.tensor([[1001.0, 1002.0, 1004.0]])) > 0.3


def test_a_token_that_rises_from_the_rest_of_the_vocabulary_is_an_error() -> None:
    live = torch.linspace(10, 0, 1000)[None]
    other = live.clone()
    other[0, 900] = 20.0
    assert relative_error(top_logits(live), other) > 0.1
    other[0, 900] = 2.0  # still among the smallest
    assert relative_error(top_logits(live), other) < 0.01


def test_the_limit_follows_the_coarser_format() -> None:
    assert error_limit("float16", "float32") == 0.001
    assert error_limit("bfloat16", "float32") == 0.01
    assert error_limit("float16", "float16") == 0.002
    assert error_limit("float16", "bfloat16") == error_limit("bfloat16", "bfloat16") == 0.02


def test_several_files_are_merged_one_by_one(models: Path, merged: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model(models / "base")
    model.save_pretrained(tmp_path / "base", max_shard_size="200KB")
    tokenizer.save_pretrained(tmp_path / "base")
    merge(tmp_path / "base", models / "adapter", tmp_path / "out", dtype="float16")
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 2
    whole = load_model(merged)[0].state_dict()
    for name, weight in load_model(tmp_path / "out")[0].state_dict().items():
        assert torch.equal(weight, whole[name]), name


def of_another_layer(adapter: Path) -> None:
    path = adapter / "adapter_model.safetensors"
    weights = {name.replace(".layers.1.", ".layers.7."): w for name, w in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})


def made_rslora(adapter: Path) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"use_rslora": True}))


@pytest.mark.parametrize(
    ("change", "word"), [(of_another_layer, "another base"), (made_rslora, "use_rslora")]
)
def test_an_adapter_that_does_not_fit_is_refused(models, tmp_path, change, word):
    shutil.copytree(models / "adapter", tmp_path / "adapter")
    change(tmp_path / "adapter")
    with pytest.raises(ExportError, match=word):
        merge(models / "base", tmp_path / "adapter", tmp_path / "merged", dtype="float16")


@pytest.fixture
def project(models, served_folder, server_params, monkeypatch, warm) -> Params:
    """A working folder with data and models; the settings play short turns on the server."""
    monkeypatch.setattr(sys, "executable", warm)
    shutil.copytree(models, served_folder / "models")
    return changed(server_params, export={"prompts": 4}, generation={"max_turn_tokens": 8})


def test_the_stage_keeps_a_merge_that_a_fresh_process_approved(project):
    recorder = recorded(export, project)
    told = json.loads(paths.EXPORT.read_text())
    assert told["wrong"] == []
    assert told["completions_equal"] + len(told["ties"]) == told["prompts"] == 4
    assert told["logit_error"] < LIMIT < told["effect"]
    assert told["episode"]["void"] is None
    assert recorder.metrics["export/logit_error"] == told["logit_error"]
    assert [path.name for path in Path("models").iterdir() if path.name.startswith(".")] == []
    model, tokenizer = load_model(paths.MERGED)
    assert tokenizer.chat_template
    assert next(model.parameters()).isfinite().all()


def test_a_bad_merge_fails_the_stage_and_leaves_no_model(project, monkeypatch):
    def with_a_wrong_weight(base: Path, adapter: Path, out: Path, **options: Any) -> None:
        merge(base, adapter, out, **options)
        weights = load_file(out / "model.safetensors")
        weights["model.layers.1.mlp.down_proj.weight"] *= 1.1
        save_file(weights, out / "model.safetensors", metadata={"format": "pt"})

    monkeypatch.setattr(export, "merge", with_a_wrong_weight)
    paths.MERGED.mkdir()  # of an earlier run: not this training's either
    with pytest.raises(StageError, match=r"differs from the live model: logits are"):
        recorded(export, project)
    assert sorted(path.name for path in Path("models").iterdir()) == ["adapter", "base"]
    assert json.loads(paths.EXPORT.read_text())["wrong"]


def test_a_folder_that_cannot_be_loaded_fails_the_stage(project, monkeypatch):
    def torn(base: Path, adapter: Path, out: Path, **options: Any) -> None:
        merge(base, adapter, out, **options)
        weights = out / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])

    monkeypatch.setattr(export, "merge", torn)
    with pytest.raises(StageError, match=r"could not be loaded and compared"):
        recorded(export, project)
    assert not paths.MERGED.exists()


def test_weights_that_do_not_fit_the_dtype_are_refused(models: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model(models / "base")
    model.model.layers[0].mlp.up_proj.weight.data[0, 0] = 1e6
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    with pytest.raises(ExportError, match=r"up_proj.weight: not finite in float16"):
        merge(tmp_path / "base", models / "adapter", tmp_path / "merged", dtype="float16")
