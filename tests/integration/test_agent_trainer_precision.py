"""The trainer on 4-bit and 16-bit bases: number formats of weights and gradients."""

import dataclasses
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import random_model

from agent.policies.hf_policy import load_model
from agent.training import checkpoints, trained_weights

pytestmark = [
    pytest.mark.usefixtures("trainer_imported"),
    pytest.mark.xdist_group("trainer"),  # so that one process imports TRL
]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def nf4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 4-bit base that computes in float32; read only."""
    return random_model.write_base(tmp_path_factory.mktemp("nf4"), torch.float32)


@pytest.fixture(scope="module")
def taught(nf4: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 4-bit base with an adapter of its own; read only."""
    base = Path(shutil.copytree(nf4, tmp_path_factory.mktemp("taught") / "base"))
    random_model.write_adapter(base, base / "adapter")
    return base


def trained(trainer: Any) -> dict[str, torch.Tensor]:
    return trained_weights.copies(trainer.live_model)


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=0))


def unchanged_share(base: Path, folder: Path) -> float:
    """Largest share of values of a `lora_A` that three steps at 1e-5 leave as they were."""
    model, _ = load_model(base)
    trainer = random_model.qwen_trainer(folder, model, learning_rate=1e-5, max_step_kl=1e9)
    before = trained(trainer)
    trainer.resume(None)
    after = trained(trainer)
    return max(float((before[n] == after[n]).float().mean()) for n in after if "lora_A" in n)


def test_adapters_of_a_4_bit_base_are_float32_and_move_at_a_small_rate(nf4, tmp_path, monkeypatch):
    weights = trained(random_model.qwen_trainer(tmp_path / "first", load_model(nf4)[0]))
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert {name.split(".")[-4] for name in weights} == set(random_model.PROJECTIONS)
    assert unchanged_share(nf4, tmp_path / "float32") <= 0.01
    monkeypatch.setattr(trained_weights, "restore_float32", lambda model, kept: None)
    assert unchanged_share(nf4, tmp_path / "bfloat16") > 0.9  # control: as TRL leaves them


def half_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, scale: bool = True
) -> torch.Tensor:
    """Gradient of a step whose loss is divided by 30,000 tokens."""
    from agent.training import trainer as module

    def make_rows(*arguments: Any) -> Any:
        return dataclasses.replace(rows_of(*arguments), normaliser=3e4)

    with monkeypatch.context() as patched:
        rows_of = module.make_rows
        patched.setattr(module, "make_rows", make_rows)
        if not scale:
            patched.setattr(module, "needs_scale", lambda model: False)
        torch.manual_seed(0)
        folder, model = tmp_path / f"{dtype}{scale}", random_model.qwen(layers=4, dtype=dtype)
        made = random_model.qwen_trainer(folder, model, play=of_float32, scale_rewards="none")
        generator = torch.Generator().manual_seed(1)
        for name, weight in made.live_model.named_parameters():
            if "lora_B" in name:
                weight.data.normal_(std=0.02, generator=generator)
        made._check_logprobs = lambda step: None
        return random_model.flat(random_model.gradients(made))


def of_float32(model: Any, step: int) -> Any:
    """The same trees for every number format, with advantages of about 0.05."""
    groups = random_model.play_qwen(random_model.qwen(layers=4), step)
    for tree in (tree for group in groups for tree in group):
        tree.reward *= 0.2
    return groups


def test_gradients_of_a_float16_model_are_those_of_float32_with_the_scale(tmp_path, monkeypatch):
    exact = half_precision(tmp_path, monkeypatch, torch.float32)
    scaled = half_precision(tmp_path, monkeypatch, torch.float16)
    bare = half_precision(tmp_path, monkeypatch, torch.float16, scale=False)
    assert cosine(scaled, exact) > 0.999
    assert float(scaled.norm() / exact.norm()) == pytest.approx(1, abs=0.01)
    assert cosine(bare, exact) < 0.9  # control


def test_the_adapter_of_a_base_is_trained_on_and_a_resumed_run_equals_a_whole_one(taught, tmp_path):
    def killed(model: Any, step: int) -> Any:
        if step == 3:
            raise KeyboardInterrupt
        return random_model.play_qwen(model, step)

    model, _ = load_model(taught)
    before = {n: w.detach().clone() for n, w in model.named_parameters() if "lora" in n}
    whole = random_model.qwen_trainer(tmp_path / "whole", model)
    weights = trained(whole)
    assert before.keys() == weights.keys()
    assert all(torch.equal(weights[name], value) for name, value in before.items())
    assert any((v != v.to(torch.bfloat16)).any() for v in before.values())  # TRL would round these
    whole.resume(None)
    assert any(not torch.equal(trained(whole)[name], value) for name, value in before.items())

    cut = random_model.qwen_trainer(tmp_path / "cut", load_model(taught)[0], play=killed)
    with pytest.raises(KeyboardInterrupt):
        cut.resume(None)
    start = checkpoints.choose(tmp_path / "cut", {"a": 1})
    assert start.checkpoint is not None
    resumed = random_model.qwen_trainer(tmp_path / "cut", load_model(taught)[0])
    resumed.resume(start.checkpoint)
    for name, value in trained(whole).items():
        assert torch.equal(trained(resumed)[name], value), name


@pytest.mark.parametrize(
    ("file", "kind"), [("training/trl_loss.py", "GRPO"), ("demonstrations/supervised.py", "SFT")]
)
def test_unsloth_before_the_trainers_is_refused(monkeypatch, file, kind):
    name = f"{kind}Trainer"
    fake = type(f"Unsloth{name}", (), {"__module__": "unsloth"})
    monkeypatch.setattr(f"trl.trainer.{kind.lower()}_trainer.{name}", fake)
    says = rf"TRL's {name} was replaced by unsloth\.Unsloth{name} .* first, and then unsloth\."
    with pytest.raises(ImportError, match=says):
        runpy.run_path(str(ROOT / "agent" / file))
