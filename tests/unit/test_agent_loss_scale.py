"""The scale of the loss: powers of two, halved while gradients are not finite."""

import torch

from agent.training.loss_scale import MOST_HALVINGS, first_scale, scaled_backward


def test_the_first_scale_is_a_power_of_two_below_the_normaliser() -> None:
    for normaliser, scale in ((0.3, 1.0), (1.0, 1.0), (3.9, 2.0), (30_000.0, 16384.0)):
        assert first_scale(normaliser) == scale


def test_the_scale_is_halved_until_gradients_are_finite() -> None:
    weight, scales = torch.nn.Parameter(torch.zeros(1, dtype=torch.float16)), []

    def backward(scale: float) -> str:
        scales.append(scale)
        (weight * scale * 100).sum().backward()  # float16 ends at 65504
        return "loss"

    assert scaled_backward(backward, lambda: [weight], 2048.0) == "loss"
    assert scales == [2048.0, 1024.0, 512.0]
    assert weight.grad is not None
    assert float(weight.grad) == 100.0  # divided by the scale again


def test_gradients_that_stay_infinite_are_left_to_the_trust_region() -> None:
    weight, calls = torch.nn.Parameter(torch.zeros(1)), []

    def backward(scale: float) -> None:
        calls.append(scale)
        (weight * torch.inf).sum().backward()

    scaled_backward(backward, lambda: [weight], 8.0)
    assert len(calls) == MOST_HALVINGS + 1
    assert not weight.grad.isfinite()  # type: ignore[union-attr]


def test_without_a_scale_nothing_is_made_twice() -> None:
    weight, calls = torch.nn.Parameter(torch.zeros(1)), []
    scaled_backward(lambda scale: calls.append(scale), lambda: [weight], 1.0)
    assert calls == [1.0]
