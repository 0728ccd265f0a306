"""Check that the rollout and the trainer compute the same log-probabilities.

Only this check detects wrong templates, lost biases, retokenised text and a missing adapter.
Without it, training continues on wrong numbers. Pure numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent.errors import LogprobCheckError

EVERY = 10
"""Steps between checks after steps 1 and 2."""
EXACT = {"max": 1e-3}
"""Limits of float32."""
ROUNDED = {"mean": 0.05, "p99": 0.5}
"""Of 16 and 4 bits: bfloat16 rounds a logit between 16 and 32 to 0.125, each its own way."""


@dataclass(frozen=True)
class Mismatch:
    """|log-prob of the rollout - log-prob of the trainer| over sampled tokens."""

    tokens: int
    mean: float
    p99: float
    max: float


def measure(rollout_N: NDArray[np.float32], trainer_N: NDArray[np.float32]) -> Mismatch:
    """Compare N sampled tokens; a NaN counts as an infinite difference."""
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


def due(step: int) -> bool:
    """Whether a step (from 1) is checked; the trainer adds the first one after a resume.

    Step 2 is needed because a fresh adapter changes nothing: a lost one passes at step 1.
    """
    return step <= 2 or step % EVERY == 0


def require_agreement(mismatch: Mismatch, *, exact: bool, step: int) -> None:
    """Stop a run whose log-probabilities disagree.

    Args:
        mismatch: as measured.
        exact: True for float32 weights in the trainer's own loop, which limits the maximum;
            otherwise mean and 99th percentile are limited.
        step: next optimizer step, for the message.

    Raises:
        LogprobCheckError: a limit is exceeded.
    """
    for name, limit in (EXACT if exact else ROUNDED).items():
        value = getattr(mismatch, name)
        if value > limit:
            raise LogprobCheckError(
                f"step {step}: the trainer's log-probabilities differ from the rollout's ({name} "
                f"{value:.3g} over {mismatch.tokens} sampled tokens, limit {limit:g}). "
                "The tokens or weights differ: check the chat "
                "template, the adapter and the temperature, and never re-encode ids from text."
            )
