"""The gradient of a step against the loss written out, and the limits of rounded weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from helpers.tiny_trees import SETTINGS, make_trainer, play_trees, sampled_logps, tiny_model

from agent.errors import LogprobCheckError
from agent.training.logprob_check import Mismatch, check

if TYPE_CHECKING:
    from agent.training.trainer import TreeGRPOTrainer

pytestmark = [
    pytest.mark.usefixtures("trainer_imported"),
    pytest.mark.xdist_group("trainer"),  # so that one process imports TRL
]


def gradient(of: TreeGRPOTrainer) -> torch.Tensor:
    of.live_model.zero_grad()
    of.training_step(of.live_model, [0])
    return torch.cat([p.grad.flatten() for p in of.live_model.parameters()])


def written_out() -> torch.Tensor:
    """Gradient of the weighted loss."""
    model = tiny_model()
    total, normaliser = torch.zeros(()), 0.0
    for group in play_trees(model, 1):
        mean = np.mean([tree.reward for tree in group])
        for tree in group:
            for frame in tree.frames.values():
                weight = 1.0 if frame.parent is None else 1.0 / len(tree.children(0))
                logps = sampled_logps(model, frame.turns)
                total = total - weight * (tree.reward - mean) * logps.sum()
                normaliser += weight * len(logps)
    (total / normaliser).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_the_gradient_is_that_of_the_loss_written_out(tmp_path):
    settings = SETTINGS.model_copy(update={"method": "full", "scale_rewards": "none"})
    found = gradient(make_trainer(tmp_path, settings, rollout=play_trees))
    assert float(found.abs().max()) > 1e-4
    torch.testing.assert_close(found, written_out(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("found", "limit"),
    [((0.06, 0.1), "mean"), ((0.01, 0.6), "p99"), ((0.04, 0.4), None)],
)
def test_rounded_weights_have_limits_of_their_own(found, limit):
    mismatch = Mismatch(tokens=9, mean=found[0], p99=found[1], max=3.0)
    if limit is None:
        check(mismatch, exact=False, step=1)
        return
    with pytest.raises(LogprobCheckError, match=rf"\({limit} .*limit 0\.0?5\)"):
        check(mismatch, exact=False, step=1)
