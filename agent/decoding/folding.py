"""An adapter folded into the weights of a model while it plays.

An adapter costs a small model up to a third of each decoding step. Sums of weights and adapter are
made in float32 alone: in shorter numbers, they would round a small update away. A model of 16 or 4
bits keeps its weights and multiplies with the adapter's two factors besides, in its own number
format: two kernels instead of PEFT's six. The second one adds before it rounds. The layers' own
weights stay as they are, so nothing has to be restored. What was made is kept from round to round,
since a rollout has many rounds of the same weights. Neighbour: `hf_policy.py` samples from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch.nn.functional import linear


class Folding:
    """Sums of a model's weights and its adapter, made when they are first used."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._forwards: dict[Any, Callable[..., torch.Tensor]] = {}
        """What a layer does in place of its own forward."""
        self._chosen: list[Any] = []
        """Adapters in the sums, by layer."""
        self._weights: list[torch.Tensor] = []
        """Copies of their weights."""

    @contextmanager
    def folded(self) -> Iterator[bool]:
        """Let the layers multiply with the sums for the duration of the block.

        Yields whether they are those of the last block.
        """
        same = self._renew()
        for module, forward in self._forwards.items():
            module.forward = forward
        try:
            yield same
        finally:
            for module in self._forwards:
                del module.forward

    def forget(self) -> None:
        """Free the memory of the sums."""
        self._forwards, self._weights = {}, []

    def _renew(self) -> bool:
        """Make the sums again if the adapter has changed; returns whether it has not."""
        layers = _adapted(self._model)
        chosen = [_in_use(module) for module in layers]
        weights = [
            weight.detach()
            for module in layers
            for name, weight in module.named_parameters()
            if name.startswith("lora_")
        ]
        same = [*self._forwards] == layers and self._chosen == chosen
        if same and all(map(torch.equal, self._weights, weights)):
            return True
        self.forget()
        self._chosen, self._weights = chosen, [weight.clone() for weight in weights]
        self._forwards = {module: _forward(module) for module in layers}
        return False


def _adapted(model: Any) -> list[Any]:
    """Linear layers with a LoRA adapter, if the model has no other kind of adapter."""
    config = getattr(model, "active_peft_config", None)
    if config is None or config.peft_type != "LORA":
        return []
    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    plain = all(
        type(layer).__name__ == type(layer.base_layer).__name__
        and type(layer).__name__ in ("Linear", "Linear4bit")  # of bitsandbytes, if there is one
        and not (layer.merged or layer.lora_variant or any(layer.lora_bias.values()))
        for layer in layers
    )
    return layers if plain else []


def _in_use(module: Any) -> list[str]:
    """Names of a layer's adapters that are in use."""
    return [] if module.disable_adapters else list(module.active_adapters)


@torch.no_grad()
def _forward(module: Any) -> Callable[..., torch.Tensor]:
    """The forward of a layer and its adapters."""
    base, names = module.base_layer, _in_use(module)
    if base.weight.dtype == torch.float32:
        weight = base.weight.data
        for name in names:
            weight = weight + module.get_delta_weight(name)
        return lambda x, *_, **__: linear(x, weight, base.bias)
    dtype = getattr(base, "compute_dtype", None) or base.weight.dtype
    if not names:
        return base.forward
    down = torch.cat([module.lora_A[n].weight for n in names]).to(dtype)
    up = torch.cat([module.scaling[n] * module.lora_B[n].weight for n in names], 1).to(dtype).T

    def forward(x: torch.Tensor, *_arguments: Any, **_options: Any) -> torch.Tensor:
        y: torch.Tensor = base(x)
        inner = linear(x.to(dtype), down).flatten(0, -2)
        return torch.addmm(y.flatten(0, -2), inner.to(y.dtype), up.to(y.dtype)).view_as(y)

    return forward
