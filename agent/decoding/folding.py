"""An adapter folded into the weights of a model while it plays.

An adapter costs a small model up to a third of each decoding step. Sums of weights and adapter are
made in float32 alone: in shorter numbers, they would round a small update away. A bfloat16 model on
a CPU keeps its weights and multiplies with the adapter's two factors besides, without PEFT's way
through float32. The layers' own weights stay as they are, so nothing has to be restored. What was
made is kept from round to round, since a rollout has many rounds of the same weights. Neighbour:
`hf_policy.py` samples from the folded model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.lora import Linear, LoraLayer
from torch.nn.functional import linear


class Folding:
    """Sums of a model's weights and its adapter, made when they are first used.

    A model with other weights than float32, or bfloat16 on a CPU, stays as it is.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._sums: dict[Any, torch.Tensor] = {}
        """Weights to multiply with, by layer."""
        self._factors: dict[Any, _Factors] = {}
        self._chosen: list[Any] = []
        """Adapters in the sums, by layer."""
        self._weights: list[torch.Tensor] = []
        """Copies of their weights."""

    @contextmanager
    def folded(self) -> Iterator[None]:
        """Let the layers multiply with the sums for the duration of the block."""
        self._renew()
        for module, weight in self._sums.items():
            module.forward = _linear(weight, module.base_layer.bias, self._factors[module])
        try:
            yield
        finally:
            for module in self._sums:
                del module.forward

    def forget(self) -> None:
        """Free the memory of the sums."""
        self._sums, self._factors, self._weights = {}, {}, []

    def _renew(self) -> None:
        """Make the sums again if the adapter has changed."""
        layers = _adapted(self._model)
        chosen = [_in_use(module) for module in layers]
        weights = [
            weight.detach()
            for module in layers
            for name, weight in module.named_parameters()
            if name.startswith("lora_")
        ]
        same = [*self._sums] == layers and self._chosen == chosen
        if same and all(map(torch.equal, self._weights, weights)):
            return
        self.forget()
        self._chosen, self._weights = chosen, [weight.clone() for weight in weights]
        self._sums = {module: _sum(module) for module in layers}
        self._factors = {module: _factors(module) for module in layers}


def _adapted(model: Any) -> list[Any]:
    """Linear layers with a LoRA adapter, if the model has no other kind of adapter."""
    config = getattr(model, "active_peft_config", None)
    kinds = {(p.dtype, p.device.type) for p in model.parameters() if p.dtype != torch.float32}
    if config is None or config.peft_type != "LORA" or kinds - {(torch.bfloat16, "cpu")}:
        return []
    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    plain = all(
        type(layer) is Linear
        and type(layer.base_layer) is torch.nn.Linear
        and not (layer.merged or layer.lora_variant or any(layer.lora_bias.values()))
        for layer in layers
    )
    return layers if plain else []


def _sum(module: Any) -> torch.Tensor:
    """Weight of a layer, and in float32 its adapters added: [out, in]."""
    weight: torch.Tensor = module.base_layer.weight.data
    if weight.dtype == torch.float32:
        with torch.no_grad():
            for name in _in_use(module):
                weight = weight + module.get_delta_weight(name)
    return weight


_Factors = list[tuple[Any, Any]]
"""An adapter's matrices, [r, in] and [out, r] with its scaling, in the format of the weights."""


def _factors(module: Any) -> _Factors:
    """Factors of the adapters that are not in a layer's sum."""
    dtype = module.base_layer.weight.dtype
    if dtype != torch.bfloat16:
        return []
    return [
        (
            module.lora_A[name].weight.detach().to(dtype),
            (module.scaling[name] * module.lora_B[name].weight.detach()).to(dtype),
        )
        for name in _in_use(module)
    ]


def _in_use(module: Any) -> list[str]:
    """Names of a layer's adapters that are in use."""
    return [] if module.disable_adapters else list(module.active_adapters)


def _linear(
    weight: torch.Tensor, bias: torch.Tensor | None, factors: _Factors
) -> Callable[..., torch.Tensor]:
    def forward(x: torch.Tensor, *_arguments: Any, **_options: Any) -> torch.Tensor:
        y = linear(x, weight, bias)
        for down, up in factors:
            y = y + linear(linear(x, down), up)
        return y

    return forward
