"""A limit on how far one optimizer step may move the policy.

The learning rate fixes the length of a step in weights. How differently the policy then acts is
another matter: now and then a single step moves it a hundred times as far as its neighbours do,
and such a step can lose it for good (docs/experiments.md). So after each step the divergence
KL(sampled || after) from the policy that sampled the tokens is estimated on these tokens, and
while it is above the limit the step is halved, back towards the weights it started from. With
several steps on one rollout the limit holds for all of them together: only there the tokens are
a sample of the right policy, and a step that has no room left is taken back.

A step that made weights no numbers also made the optimizer's moments such, which would ruin every
later step: they are cleared, and the next step starts them anew.

Nothing is kept from step to step, so a resumed run does the same. Sources: the backtracking line
search of TRPO (Schulman et al. 2015, arXiv:1502.05477, appendix C); the estimator r - 1 - log r
(J. Schulman, "Approximating KL divergence", 2020).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

logger = logging.getLogger(__name__)

MAX_HALVINGS = 8
"""After these the weights before the step are put back, also if it made them no numbers."""


def step_kl(before_N: np.ndarray, after_N: np.ndarray) -> float:
    """Estimate KL(before || after) in nats a token.

    Args:
        before_N: log-probabilities of tokens sampled from the policy before the step.
        after_N: those of the same tokens after it.

    Returns:
        The mean of r - 1 - log r with r = after / before, never negative; 0 for no tokens.
    """
    if not before_N.size:
        return 0.0
    log_r_N = after_N.astype(np.float64) - before_N
    with np.errstate(over="ignore"):
        return float(np.mean(np.expm1(log_r_N) - log_r_N))


class TrustRegion(TrainerCallback):
    """Shortens each optimizer step that moves the policy beyond the limit.

    Args:
        limit: nats a token.
        weights: what is trained.
        measure: the divergence of the policy as it now is from the one that sampled.
        note: receives `kl` (of the step that was kept) and `scale` (the share of it, 1 = whole).
    """

    def __init__(
        self,
        limit: float,
        weights: Callable[[], Iterable[torch.nn.Parameter]],
        measure: Callable[[], float],
        note: Callable[[str, float], None],
    ) -> None:
        self._limit = limit
        self._weights = weights
        self._measure = measure
        self._note = note
        self._before: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Remember the weights."""
        self._before = [weight.detach().clone() for weight in self._weights()]

    def on_optimizer_step(self, *_: Any, **of_trainer: Any) -> None:
        """Halve the step until the policy has moved no further than the limit."""
        scale, kl = 1.0, self._measure()
        if not all(weight.isfinite().all() for weight in self._weights()):
            of_trainer["optimizer"].state.clear()
            logger.warning(
                "train: an optimizer step made weights that are no finite numbers, so its gradient "
                "was none either; the step is taken back and the optimizer's moments are cleared. "
                "If this comes again, lower train.learning_rate"
            )
        while not kl <= self._limit and scale > 0:  # NaN is no small step
            scale = scale / 2 if scale > 0.5**MAX_HALVINGS else 0.0
            self._shorten(0.5 if scale else 0.0)
            kl = self._measure()
        self._before = []
        self._note("kl", kl)
        self._note("scale", scale)

    @torch.no_grad()
    def _shorten(self, share: float) -> None:
        for weight, before in zip(self._weights(), self._before, strict=True):
            # Nothing of a weight that is infinite can be kept.
            weight.copy_(before + share * (weight - before) if share else before)
