"""Trust region: a limit on how far an optimizer step may move the policy.

The learning rate limits a step in weights, not in behaviour. A single step can move the policy a
hundred times as far as other steps and ruin it (docs/adr/0009). So each step is limited:

1. Remember the weights before the optimizer step.
2. After it, estimate KL(sampled || after) on the step's tokens, in nats per token.
3. While it exceeds the limit, halve the step towards the remembered weights. After
   `MAX_HALVINGS` halvings, restore them.

A step with non-finite weights has also spoilt the optimizer's moments. They are cleared, and the
next step starts from new ones. No state is kept between steps, so a resumed run behaves the same.

Sources: the backtracking line search of TRPO (Schulman et al. 2015, arXiv:1502.05477, appendix C);
the estimator r - 1 - log r (J. Schulman, "Approximating KL divergence", 2020).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

logger = logging.getLogger(__name__)

MAX_HALVINGS = 8
"""Most halvings; then the weights before the step are restored, even from non-finite ones."""


def step_kl(before_N: np.ndarray, after_N: np.ndarray) -> float:
    """Estimate KL(before || after) in nats per token.

    Args:
        before_N: log-probabilities of N tokens under the policy that sampled them.
        after_N: log-probabilities of the same tokens after the step.

    Returns:
        Mean of r - 1 - log r with r = after / before, at least 0; 0 without tokens.
    """
    if not before_N.size:
        return 0.0
    log_r_N = after_N.astype(np.float64) - before_N
    with np.errstate(over="ignore"):
        return float(np.mean(np.expm1(log_r_N) - log_r_N))


@dataclass(eq=False)
class TrustRegion(TrainerCallback):
    """Callback that shortens each optimizer step that moves the policy beyond the limit.

    Args:
        limit: nats per token.
        weights: trained weights.
        measure: divergence of the current policy from the one that sampled.
        note: receives `kl` after the step and `scale`, the share of the step that was kept.
    """

    limit: float
    weights: Callable[[], Iterable[torch.nn.Parameter]]
    measure: Callable[[], float]
    note: Callable[[str, float], None]
    _before: list[torch.Tensor] = field(default_factory=list)

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Remember the weights before the step."""
        self._before = [weight.detach().clone() for weight in self.weights()]

    def on_optimizer_step(self, *_: Any, **of_trainer: Any) -> None:
        """Halve the step until the policy has moved no further than the limit."""
        scale, kl = 1.0, self.measure()
        if not all(weight.isfinite().all() for weight in self.weights()):
            of_trainer["optimizer"].state.clear()
            logger.warning(
                "train: an optimizer step made weights that are not finite; the step is undone and "
                "the optimizer's moments are cleared. If this recurs, lower train.learning_rate."
            )
        while not kl <= self.limit and scale > 0:  # a NaN counts as above the limit
            scale = scale / 2 if scale > 0.5**MAX_HALVINGS else 0.0
            self._shorten(0.5 if scale else 0.0)
            kl = self.measure()
        self._before = []
        self.note("kl", kl)
        self.note("scale", scale)

    @torch.no_grad()
    def _shorten(self, share: float) -> None:
        for weight, before in zip(self.weights(), self._before, strict=True):
            # 0 x an infinite difference is NaN, so a share of 0 copies the weight instead.
            weight.copy_(before + share * (weight - before) if share else before)
