"""Scale of the loss, so that gradients of a float16 model do not vanish.

The loss is a sum over a step's tokens divided by their number. With 30,000 tokens, a token's part
of the gradient is too small for float16, and is rounded away on its way back through the layers.
So the loss is multiplied by about that number, and the gradients are divided by it before the
optimizer sees them. The scale is a power of two, which changes no digit of a number.

Nothing is kept from step to step, so that a resumed run behaves the same.

Source: P. Micikevicius et al., "Mixed Precision Training", 2018 (arXiv:1710.03740), section 3.2.
Departure: the scale follows from the step instead of from earlier overflows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

T = TypeVar("T")

MOST_HALVINGS = 24
"""Halvings after which gradients that are not finite are left to the trust region."""


def needs_scale(model: torch.nn.Module) -> bool:
    """Whether the model computes in float16; other formats have the exponents of float32."""
    return any(weight.dtype == torch.float16 for weight in model.parameters())


def first_scale(normaliser: float) -> float:
    """Largest power of two that is not above the divisor of a step's loss, and at least 1."""
    return 2.0 ** math.floor(math.log2(max(normaliser, 1.0)))


def scaled_backward(
    backward: Callable[[float], T],
    weights: Callable[[], Iterable[torch.nn.Parameter]],
    scale: float,
) -> T:
    """Make gradients with a scaled loss, and divide them by the scale.

    If one is not finite, the scale was too large: it is halved, and the gradients are made again.

    Args:
        backward: adds the gradients of the loss times its argument; returns what this returns.
        weights: the trained weights, whose gradients are empty.
        scale: first scale, a power of two; at 1, the gradients are left as they are.
    """
    if scale == 1.0:
        return backward(scale)
    for halvings in range(MOST_HALVINGS + 1):
        result = backward(scale)
        gradients = [weight.grad for weight in weights() if weight.grad is not None]
        if halvings == MOST_HALVINGS or all(gradient.isfinite().all() for gradient in gradients):
            break
        scale /= 2
        for gradient in gradients:
            gradient.zero_()
    for gradient in gradients:
        gradient /= scale
    return result
