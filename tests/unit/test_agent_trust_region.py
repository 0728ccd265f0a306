"""The limit on a step's divergence: the estimate, the halving, gradients that are not finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

if TYPE_CHECKING:
    from agent.training.trust_region import TrustRegion


pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it


def region_of(
    weight: torch.nn.Parameter, limit: float, measure: Callable[[], float], noted: dict[str, float]
) -> tuple[TrustRegion, tuple[Any, ...]]:
    """The callback for one weight, and what the Trainer hands to it."""
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from agent.training.trust_region import TrustRegion

    state = (TrainingArguments(output_dir="unused"), TrainerState(), TrainerControl())
    return TrustRegion(limit, lambda: [weight], measure, noted.__setitem__), state


def test_the_estimate_is_the_divergence_of_the_two_policies():
    from agent.training.trust_region import step_kl

    rng = np.random.default_rng(0)
    before = rng.dirichlet(np.ones(9))
    after = 0.8 * before + 0.2 * rng.dirichlet(np.ones(9))
    exact = float(np.sum(before * np.log(before / after)))
    tokens = rng.choice(9, size=200_000, p=before)
    assert step_kl(np.log(before[tokens]), np.log(after[tokens])) == pytest.approx(exact, rel=0.05)
    assert exact > 0.005


def test_a_policy_that_did_not_move_has_no_divergence_and_one_that_jumped_has():
    from agent.training.trust_region import step_kl

    same = np.array([-1.0, -2.0])
    assert step_kl(same, same) == 0.0
    assert step_kl(np.zeros(0), np.zeros(0)) == 0.0
    assert step_kl(same, same + 1000) == float("inf")
    assert step_kl(same, same - 1000) > 900
    assert np.isnan(step_kl(same, same * float("nan")))


def step_of_one(limit: float, divergence_of) -> tuple[float, dict[str, float]]:
    """Move one weight from 1 to 3 under the limit; where it ends, and what was noted."""
    weight = torch.nn.Parameter(torch.ones(1))
    noted: dict[str, float] = {}
    region, state = region_of(weight, limit, lambda: divergence_of(weight.item() - 1), noted)
    region.on_pre_optimizer_step(*state)
    with torch.no_grad():
        weight.fill_(3.0)
    region.on_optimizer_step(*state, optimizer=torch.optim.AdamW([weight]))
    return weight.item(), noted


STEPS = {
    "within": (4.0, lambda moved: moved**2, (3.0, {"kl": 4.0, "scale": 1.0})),
    "beyond": (0.3, lambda moved: moved**2, (1.5, {"kl": 0.25, "scale": 0.25})),
    "far beyond": (1.0, lambda moved: moved and np.inf, (1.0, {"kl": 0.0, "scale": 0.0})),
    "nan": (1.0, lambda moved: moved and np.nan, (1.0, {"kl": 0.0, "scale": 0.0})),
}


@pytest.mark.parametrize("case", STEPS)
def test_a_step_is_halved_until_it_is_within_the_limit_or_undone_exactly(case):
    limit, divergence, end = STEPS[case]
    assert step_of_one(limit, divergence) == end


@pytest.mark.parametrize("ruined", [float("nan"), float("inf")])
def test_the_step_after_a_non_finite_gradient_moves_the_weights(ruined, caplog):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.0)
    noted: dict[str, float] = {}
    region, state = region_of(weight, 1.0, lambda: (weight - 1).abs().sum().item(), noted)

    def step(*gradient: float) -> list[float]:
        weight.grad = torch.tensor(gradient)
        torch.nn.utils.clip_grad_norm_([weight], 0.1)
        region.on_pre_optimizer_step(*state)
        optimizer.step()
        region.on_optimizer_step(*state, optimizer=optimizer)
        return weight.tolist()

    assert step(ruined, 1.0) == [1.0, 1.0]
    assert noted["scale"] == 0
    assert "weights that are not finite" in caplog.text
    caplog.clear()
    assert step(1.0, 1.0) == pytest.approx([0.9, 0.9], abs=1e-4)
    assert noted["scale"] == 1
    assert not caplog.text
