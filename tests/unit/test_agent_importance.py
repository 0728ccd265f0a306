"""The gradient of a step, and its correction for another engine, against the loss written out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from helpers.tiny_trees import SETTINGS, make_trainer, play_trees, sampled_logps, tiny_model

from agent.errors import LogprobCheckError
from agent.rollouts.trajectory import Trajectory
from agent.training.logprob_check import Mismatch, check

if TYPE_CHECKING:
    from agent.training.trainer import TreeGRPOTrainer

pytestmark = [
    pytest.mark.usefixtures("trainer_imported"),
    pytest.mark.xdist_group("trainer"),  # so that one process imports TRL
]
CLIP = 1.5
Play = Callable[[torch.nn.Module, int], list[list[Trajectory]]]


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that such an engine keeps."""
    monkeypatch.setattr("agent.training.logprob_check.ROUNDED", {"mean": 9, "p99": 9})


def engine(noise: float) -> Play:
    """A rollout whose log-probabilities are off by normal noise."""

    def play(model: torch.nn.Module, step: int) -> list[list[Trajectory]]:
        groups = play_trees(model, step)
        rng = np.random.default_rng(step)
        for tree in (tree for group in groups for tree in group):
            for turn in (turn for frame in tree.frames.values() for turn in frame.turns):
                turn.logprobs = [p + rng.normal(0, noise) for p in turn.logprobs]
        return groups

    return play


def trainer(folder: Path, clip: float | None, noise: float, **changes: object) -> TreeGRPOTrainer:
    options = {"method": "full", "scale_rewards": "none", "importance_clip": clip, **changes}
    settings = SETTINGS.model_copy(update=options)
    made: TreeGRPOTrainer = make_trainer(folder, settings, rollout=engine(noise))
    made._engine = "vllm"
    return made


def gradient(of: TreeGRPOTrainer) -> torch.Tensor:
    of.live_model.zero_grad()
    of.training_step(of.live_model, [0])
    return torch.cat([p.grad.flatten() for p in of.live_model.parameters()])


def written_out(clip: float | None) -> tuple[torch.Tensor, list[float]]:
    """Gradient of the weighted loss, and the ratios that correct it, at most `clip`; None: 1."""
    model = tiny_model()
    total, normaliser, ratios = torch.zeros(()), 0.0, []
    for group in engine(0.5)(model, 1):
        mean = np.mean([tree.reward for tree in group])
        for tree in group:
            for frame in tree.frames.values():
                weight = 1.0 if frame.parent is None else 1.0 / len(tree.children(0))
                logps = sampled_logps(model, frame.turns)
                engines = torch.tensor([p for turn in frame.turns for p in turn.logprobs])
                ratio = (logps.detach() - engines).exp()
                ratio = ratio**0 if clip is None else ratio.clamp(max=clip)
                total = total - weight * (tree.reward - mean) * (ratio * logps).sum()
                normaliser += weight * len(ratio)
                ratios += ratio.tolist()
    (total / normaliser).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]), ratios


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("clip", [None, CLIP])
def test_the_gradient_is_that_of_the_loss_written_out(clip, tmp_path):
    written, ratios = written_out(clip)
    found = gradient(trainer(tmp_path, clip, noise=0.5))
    torch.testing.assert_close(found, written, rtol=1e-4, atol=1e-6)
    if clip is not None:
        assert ratios.count(CLIP) > 5  # the limit did bite
        uncorrected, _ = written_out(None)
        assert float((uncorrected - written).norm() / written.norm()) > 0.1


@pytest.mark.usefixtures("wide")
def test_later_updates_of_a_step_keep_the_weights_of_the_first(tmp_path):
    twice = trainer(tmp_path, CLIP, noise=0.5, num_iterations=2)
    gradient(twice)
    first = [batch["importance_sampling_ratio"].clone() for batch in twice._batches]
    with torch.no_grad():
        for parameter in twice.live_model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    twice.training_step(twice.live_model, [1])
    for batch, kept in zip(twice._batches, first, strict=True):
        assert torch.equal(batch["importance_sampling_ratio"], kept)
        assert torch.all(batch["importance_sampling_ratio"][~batch["env_mask"]] == 1)


@pytest.mark.parametrize(
    ("found", "limit"),
    [((0.06, 0.1), "mean"), ((0.01, 0.6), "p99"), ((0.04, 0.4), None)],
)
def test_an_engine_that_rounds_has_limits_of_its_own(found, limit):
    mismatch = Mismatch(tokens=9, mean=found[0], p99=found[1], max=3.0)
    if limit is None:
        check(mismatch, exact=False, step=1)
        return
    with pytest.raises(LogprobCheckError, match=rf"\({limit} .*limit 0\.0?5\)"):
        check(mismatch, exact=False, step=1)


def test_the_correction_of_an_exact_engine_changes_nothing(tmp_path):
    whole = gradient(trainer(tmp_path, None, noise=0.0))
    corrected = gradient(trainer(tmp_path, CLIP, noise=0.0))
    assert float(whole.abs().max()) > 1e-4
    torch.testing.assert_close(corrected, whole, rtol=1e-5, atol=1e-6)
