"""Base models: fetched from a small Hub or a folder, stored in 16 bit or NF4 with the twin."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.random_model import PROJECTIONS, llama, qwen, save_qwen, tokenizer, write_base
from helpers.recorder import Recorder
from helpers.space_hub import SHA, SpaceHub, serve_spaces
from helpers.tiny_gguf import TEMPLATE
from safetensors.torch import load_file

from agent.errors import PolicyError
from agent.models import base_model, model_files
from agent.models.base_model import prepare_base
from agent.policies.hf_policy import load_model
from agent.settings import ModelSettings
from tasks import paths, warmstart
from tasks.config import resolve
from tasks.registry import base_sources

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it

IDS = torch.arange(20, 60)[None]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in bfloat16, as on the Hub; read only."""
    return save_qwen(tmp_path_factory.mktemp("source"))


def multiplied(layer: torch.nn.Module, dtype: torch.dtype) -> torch.Tensor:
    """The weights that a layer multiplies with, read off from its products with unit vectors."""
    with torch.no_grad():
        return layer(torch.eye(layer.in_features, dtype=dtype)).T  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_twin_has_bit_for_bit_the_weights_that_4_bit_layers_multiply_with(tmp_path, dtype):
    base = write_base(tmp_path, dtype)
    model, tokenizer = load_model(base)
    twin, _ = load_model(base / model_files.TWIN, dtype=dtype)
    stored = load_file(base / "twin/model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {dtype}
    layers = {name: layer for name, layer in model.named_modules() if hasattr(layer, "quant_state")}
    assert {name.rpartition(".")[2] for name in layers} == set(PROJECTIONS)
    assert len(layers) == 14
    for name, layer in layers.items():
        assert torch.equal(multiplied(layer, dtype), stored[f"{name}.weight"]), name
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, twin(IDS).logits)
        whole = qwen(dtype=dtype)(IDS).logits  # control: 4 bits do change the model
        assert (model(IDS).logits - whole).norm() / whole.norm() > 0.05
    assert tokenizer.chat_template


def test_a_base_of_16_bit_keeps_its_weights_and_has_no_twin(source: Path, tmp_path: Path) -> None:
    found = prepare_base(ModelSettings(source=str(source)), tmp_path / "base")
    assert (found.commit, found.parameters) == (None, qwen().num_parameters())
    weights = load_file(tmp_path / "base/model.safetensors")
    for name, weight in load_file(source / "model.safetensors").items():
        assert torch.equal(weights[name], weight), name
    assert not (tmp_path / "base/twin").exists()


def test_gradients_pass_through_4_bit_layers_that_were_evaluated(tmp_path: Path) -> None:
    from bitsandbytes.functional import has_avx512bf16

    base = write_base(tmp_path, torch.float32)

    def gradient(repack: bool) -> torch.Tensor:
        model, _ = load_model(base)
        layers = [layer for layer in model.modules() if hasattr(layer, "quant_state")]
        assert not any(layer.support_avx512bf16_for_cpu for layer in layers)
        for layer in layers:
            layer.support_avx512bf16_for_cpu = repack and has_avx512bf16()
        embedding = model.get_input_embeddings().requires_grad_(True)
        with torch.no_grad():
            model.eval()(IDS)
        model.train()(IDS, labels=IDS).loss.backward()
        return embedding.weight.grad

    kept = gradient(repack=False)
    assert float(kept.norm()) > 0.1
    if has_avx512bf16():  # control: weights that were repacked lose most of it
        assert float((gradient(repack=True) - kept).norm() / kept.norm()) > 0.1


@pytest.mark.parametrize(
    ("native", "dtype"), [(True, torch.bfloat16), (False, torch.float16), (None, torch.float32)]
)
def test_the_number_format_follows_the_device(monkeypatch, native, dtype):
    def supported(including_emulation: bool = True) -> bool:
        return bool(native) or including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    device = "cpu" if native is None else "cuda:0"
    assert model_files.compute_dtype(device) == dtype
    for saved in (torch.float16, torch.bfloat16):
        assert model_files.saved_dtype(SimpleNamespace(dtype=saved), device) == dtype
    assert model_files.saved_dtype(SimpleNamespace(dtype=torch.float32), device) == torch.float32
    four_bit = {"bnb_4bit_compute_dtype": "float16"}
    config = SimpleNamespace(dtype=torch.bfloat16, quantization_config=four_bit)
    assert model_files.saved_dtype(config, device) == torch.float16


def edit_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.fixture
def hub(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SpaceHub]:
    """A Hub with models, and an empty cache of its client."""
    files = {path.name: path.read_bytes() for path in source.iterdir()}
    files |= {"own.py": b"raise SystemExit", "onnx/model.onnx": b"", "pytorch_model.bin": b"pickle"}
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serve_spaces(tmp_path) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.add("model", "org/good", files)
        server.add("model", "org/gated", files, gated=True)
        yield server


def fetched(hub: SpaceHub) -> set[str]:
    """Files whose content was asked for."""
    return {one.rpartition("/")[2] for one in hub.asked if "GET" in one and "/resolve/" in one}


def test_a_model_of_the_hub_becomes_the_base(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "BASE", tmp_path / "models/base")
    overrides = ["model.source=org/good", "warmstart.kind=none", "env.prompt_style=full"]
    run = Recorder()
    base = warmstart.run(resolve(overrides=overrides), run)
    load_model(base)
    origin = f"org/good@{SHA}"
    told = json.loads((base / base_sources.PROVENANCE).read_text())
    assert run.tags["base"] == told["from"] == origin
    assert "model.safetensors" in fetched(hub)
    assert not fetched(hub) & {"own.py", "model.onnx", "pytorch_model.bin"}
    assert len(list(base.parent.iterdir())) == 1


def test_a_llama_with_the_files_of_smollm2_on_the_hub_becomes_the_base(hub, tmp_path):
    folder = tmp_path / "smollm2"
    llama(dtype=torch.bfloat16).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    (folder / "chat_template.jinja").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    old = {"chat_template": TEMPLATE, "pad_token": "<|im_end|>", "bos_token": "<|im_start|>"}
    old |= {"tokenizer_class": "GPT2Tokenizer", "unk_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | old))
    name = "HuggingFaceTB/SmolLM2-135M-Instruct"
    hub.add("model", name, {path.name: path.read_bytes() for path in folder.iterdir()})
    assert prepare_base(ModelSettings(source=name), tmp_path / "base").origin.startswith(name)
    model, own = load_model(tmp_path / "base")
    assert (own.eos_token, model.generation_config.eos_token_id) == ("<|im_end|>", 2)
    text = "\n\n1. It's 12  3"
    assert own.encode(text) == tokenizer().encode(text)
    assert own.decode(own.encode(text)) == text
    with torch.no_grad():
        assert (model(IDS).logits - llama(dtype=torch.bfloat16).float()(IDS).logits).norm() < 1


def test_the_space_and_memory_of_a_large_model_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    source = base_model.SourceModel("org/large", {"model.safetensors": 8 * 10**9}, 4 * 10**9, "abc")
    usage = SimpleNamespace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    settings = ModelSettings(source="org/large", quantisation="nf4")
    with pytest.raises(PolicyError, match=r"27\.0 GB are needed .*8\.0, base 3\.0, twin 8\.0"):
        base_model.require_space(source, settings, torch.float16, Path())
    usage.free = 28 * 10**9
    base_model.require_space(source, settings, torch.float16, Path())
    monkeypatch.setattr(base_model, "machine_bytes", lambda: int(36.9e9))
    with pytest.raises(PolicyError, match=r"4,000 million weights need 37\.0 GB .* has 36\.9 GB"):
        base_model.require_memory(source)
    monkeypatch.setattr(base_model, "machine_bytes", lambda: int(37.1e9))
    base_model.require_memory(source)


PARTS = json.dumps({"weight_map": {"a": "../model.safetensors"}})
GPTQ = {"quantization_config": {"quant_method": "gptq"}}
OWN = {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own"}}
SLIDING = {"use_sliding_window": True, "sliding_window": 16}
SLIDING |= {"layer_types": ["sliding_attention"] * 2}
UNFIT: list[tuple[Callable[[Path], object], str]] = [
    (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "pickled"),
    (lambda f: (f / "model.safetensors").unlink(), "no weights"),
    (lambda f: (f / "config.json").unlink(), "config.json"),
    (lambda f: (f / "model.safetensors.index.json").write_text(PARTS), "in another folder"),
    (lambda f: edit_config(f, **GPTQ), "quantised already"),
    (lambda f: edit_config(f, **OWN), "Python code of its own"),
    (lambda f: (f / "adapter_config.json").write_text("{}"), "adapter"),
    (lambda f: (f / "model.safetensors").write_bytes(b"{}" * 9), "not a file of safetensors"),
    (lambda f: os.truncate(f / "model.safetensors", 100_000), "no model can be loaded"),
    (lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": []}'), "no model"),
]


@pytest.mark.parametrize(("change", "word"), UNFIT)
def test_a_folder_that_cannot_be_a_base_is_refused(source, tmp_path, change, word):
    change(Path(shutil.copytree(source, tmp_path / "changed")))
    with pytest.raises(PolicyError, match=word):
        prepare_base(ModelSettings(source=str(tmp_path / "changed")), tmp_path / "base")
    assert not (tmp_path / "base").exists()


REFUSED = [
    ({"source": "org/good"}, {}, "did not answer as a Hub does"),
    ({"source": "org/good"}, {}, "Unset HF_HUB_OFFLINE"),
    ({"source": "org/gated"}, {}, "HF_TOKEN"),
    ({"source": "org/missing"}, {}, "nor a model on the Hub"),
    ({"source": "org/good", "revision": "v9"}, {}, "revision v9"),
    ({"source": "./org/good"}, {}, "no such folder"),
    ({"source": "org/odd"}, {"model_type": "t5"}, "no model can be loaded"),
    ({"source": "org/odd"}, SLIDING, "the cache"),
]


@pytest.mark.parametrize(("settings", "config", "word"), REFUSED)
def test_a_model_is_refused_before_a_fetch(hub, tmp_path, monkeypatch, settings, config, word):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", "OFFLINE" in word)
    files = dict(hub.repos["model", "org/good"].files)
    files["config.json"] = json.dumps(json.loads(files["config.json"]) | config).encode()
    hub.add("model", "org/odd", files)
    if word == "did not answer as a Hub does":
        hub.faults["/api/models/"] = ["always", 200]  # such as a page that asks to log in
    with pytest.raises(PolicyError, match=word):
        prepare_base(ModelSettings.model_validate(settings), tmp_path / "base")
    assert "model.safetensors" not in fetched(hub)
