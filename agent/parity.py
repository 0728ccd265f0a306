"""Do the rollout and the trainer compute the same log-probabilities?

Wrong templates, lost biases, retokenised text and a forgotten adapter all show here, and
nowhere else: training goes on and learns from the wrong numbers. Pure numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent.errors import ParityError
from agent.settings import ParitySettings


@dataclass(frozen=True)
class Mismatch:
    """|log-prob of the rollout - log-prob of the trainer| over sampled tokens."""

    tokens: int
    mean: float
    p99: float
    max: float


def measure(rollout_N: NDArray[np.float32], trainer_N: NDArray[np.float32]) -> Mismatch:
    """Compare N sampled tokens; anything not finite counts as infinitely wrong."""
    if not len(rollout_N):
        return Mismatch(tokens=0, mean=0.0, p99=0.0, max=0.0)
    difference = np.abs(rollout_N.astype(np.float64) - trainer_N.astype(np.float64))
    difference = np.nan_to_num(difference, nan=np.inf)
    return Mismatch(
        tokens=len(difference),
        mean=float(difference.mean()),
        p99=float(np.quantile(difference, 0.99, method="higher")),
        max=float(difference.max()),
    )


def due(step: int, settings: ParitySettings) -> bool:
    """Steps (from 1) that are checked: 1, 2, and every N; the trainer adds those after a resume.

    A fresh adapter changes nothing, so one that is lost passes at step 1: hence step 2.
    """
    return step <= 2 or step % settings.every == 0


def check(found: Mismatch, settings: ParitySettings, *, exact: bool, step: int) -> None:
    """Stop a run whose log-probabilities do not agree.

    Args:
        found: what was measured.
        settings: the limits.
        exact: weights in float32: the maximum is limited; otherwise mean and 99th percentile.
        step: optimizer step about to be taken, for the message.

    Raises:
        ParityError: a limit is passed.
    """
    limits = (
        [("maximum", found.max, settings.max_abs, "max_abs")]
        if exact
        else [
            ("mean", found.mean, settings.mean_abs, "mean_abs"),
            ("99th percentile", found.p99, settings.p99_abs, "p99_abs"),
        ]
    )
    for name, value, limit, key in limits:
        if value > limit:
            raise ParityError(
                f"step {step}: the trainer's log-probabilities differ from the rollout's: "
                f"{name} {value:.3g} over {found.tokens} sampled tokens, limit {limit:g} "
                f"(train.parity.{key}). The trainer sees other tokens or other weights than the "
                "rollout sampled with: check the chat template and its suffix ids, the adapter, "
                "the temperature, and that ids are never re-encoded from text."
            )
