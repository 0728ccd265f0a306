"""The loader of Unsloth: its arguments, and the adapter of a base."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.random_model import write_adapter, write_base

from agent.demonstrations.unsloth_process import load_with_unsloth
from agent.policies.hf_policy import load_model
from agent.settings import LoraSettings

pytestmark = pytest.mark.xdist_group("trainer")  # so that one process imports TRL

ROOT = Path(__file__).parents[2]
SIGNATURES = json.loads((ROOT / "tests/data/unsloth_signatures.json").read_text())


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 4-bit base that computes in float16; read only."""
    return write_base(tmp_path_factory.mktemp("base"), torch.float16)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """File of the calls of a stand-in for Unsloth."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "tests/helpers/unsloth_standin"))
    monkeypatch.setenv("UNSLOTH_CALLS", str(tmp_path / "calls"))
    yield tmp_path / "calls"
    sys.modules.pop("unsloth", None)


def load(base: Path) -> tuple[Any, Any]:
    return load_with_unsloth(base, LoraSettings(), max_seq_length=2048, seed=7)


def test_a_4_bit_base_gets_an_adapter_by_arguments_of_unsloth(base: Path, calls: Path) -> None:
    model, _ = load(base)
    loaded, adapted = map(json.loads, calls.read_text().splitlines())
    for named in (loaded, adapted):
        known = SIGNATURES[named.pop("name")]
        assert named.keys() <= set(known)
    assert loaded["load_in_4bit"] is True
    assert loaded["dtype"] == "torch.float16"
    assert (loaded["max_seq_length"], loaded["fast_inference"]) == (2048, False)
    assert (adapted["r"], adapted["lora_alpha"], adapted["lora_dropout"]) == (16, 16, 0.0)
    assert (len(adapted["target_modules"]), adapted["random_state"]) == (7, 7)
    assert all(weight.requires_grad == ("lora" in n) for n, weight in model.named_parameters())


def test_the_adapter_of_a_base_is_loaded_into_it(base, calls, tmp_path, monkeypatch):
    own = Path(shutil.copytree(base, tmp_path / "base"))
    write_adapter(own, own / "adapter")
    expected, _ = load_model(own)
    stand_in = importlib.import_module("unsloth")
    monkeypatch.setattr(  # Unsloth loads the base alone
        stand_in.FastLanguageModel, "from_pretrained", lambda **named: load_model(base)
    )
    found = dict(load(own)[0].named_parameters())
    adapters = [(n, weight) for n, weight in expected.named_parameters() if "lora" in n]
    assert len(adapters) == 28
    assert all(torch.equal(found[name], weight) for name, weight in adapters)


def test_older_drivers_get_no_libraries_of_cuda_13():
    make = "make --dry-run setup-cuda UV_TORCH_BACKEND=cu126"
    found = re.search(r"<\((.+)\) ", subprocess.getoutput(f"cd {ROOT}; {make}"))[1]
    lock = subprocess.getoutput(f"cd {ROOT}; {found}")
    assert re.findall(r"^(?:(cuda|nvidia)-|torch=)", lock, re.M) == [""]


REAL = """
import inspect, json, os, sys
from pathlib import Path
import torch
from agent.training.trainer import TreeGRPOTrainer
from helpers.random_model import flat, gradients, qwen, qwen_trainer

torch.set_num_threads(1)

def gradient(name):
    torch.manual_seed(0)
    return flat(gradients(qwen_trainer(Path(name), qwen())))

plain = gradient("plain")
from unsloth import FastLanguageModel
from unsloth.models.rl import PatchFastRL
os.environ["UNSLOTH_ALLOW_CPU"] = "0"  # else TRL stays as it is
PatchFastRL(FastLanguageModel=FastLanguageModel)
import trl
print(json.dumps({
    "trl": trl.GRPOTrainer.__name__,
    "bases": [base.__name__ for base in TreeGRPOTrainer.__mro__],
    "difference": float((plain - gradient("patched")).abs().max()),
    "largest": float(plain.abs().max()),
    "parameters": {
        name: list(inspect.signature(getattr(FastLanguageModel, name)).parameters)
        for name in sys.argv[1:]
    },
}))
"""


@pytest.mark.nightly
def test_the_real_unsloth_has_the_recorded_parameters_and_changes_no_gradient(tmp_path):
    if importlib.util.find_spec("unsloth") is None:
        pytest.skip("needs unsloth and unsloth-zoo of constraints-cuda.txt, without torchvision")
    functions = sorted(SIGNATURES.keys() - {"version"})
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    command = [sys.executable, "-c", REAL, *functions]
    env = {**os.environ, "PYTHONPATH": path, "UNSLOTH_ALLOW_CPU": "1"}
    # Unsloth writes its cache into the working folder.
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["trl"] == "UnslothGRPOTrainer"
    assert found["trl"] not in found["bases"]
    assert found["difference"] == 0.0 < found["largest"]
    for function in functions:
        assert set(SIGNATURES[function]) <= set(found["parameters"][function]), function
