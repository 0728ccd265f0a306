"""An adapter folded into the weights of a model while it plays.

An adapter costs a small model up to a third of each decoding step, and 4-bit layers on a CPU unpack
their weights in each. Sums of weights and adapter are made in float32 alone: in shorter numbers,
they would round a small update away. A bfloat16 model on a CPU keeps its weights and multiplies
with the adapter's two factors besides, without PEFT's way through float32. The layers' own weights
stay as they are, so nothing has to be restored. What was made is kept from round to round, since a
rollout has many rounds of the same weights. Neighbour: `hf_policy.py` samples from the folded
model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Folding:
    """Sums of a model's weights and its adapter, made when they are first used.

    Layers with 4 bits on a CPU multiply with unpacked weights. A model with other weights than
    float32, or bfloat16 on a CPU, stays as it is.
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
            module.forward = _linear(weight, _base(module).bias, self._factors[module])
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
        import torch

        layers = _packed(self._model) or _adapted(self._model)
        adapted = [module for module in layers if module is not _base(module)]
        chosen = [(module.disable_adapters, [*module.active_adapters]) for module in adapted]
        weights = [
            weight.detach()
            for module in adapted
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


def _base(module: Any) -> Any:
    """The layer itself, without its adapter."""
    return getattr(module, "base_layer", module)


def _packed(model: Any) -> list[Any]:
    """4-bit layers, with their adapters, of a model that computes in float32 on a CPU."""
    import torch

    layers: dict[Any, Any] = {}
    for module in model.modules():
        base = _base(module)
        if hasattr(base.weight if hasattr(base, "weight") else None, "quant_state"):
            if base.weight.device.type != "cpu" or base.compute_dtype != torch.float32:
                return []
            if base not in layers.values():
                layers[module] = base
    return list(layers)


def _adapted(model: Any) -> list[Any]:
    """Linear layers with a LoRA adapter, if the model has no other kind of adapter."""
    import torch

    config = getattr(model, "active_peft_config", None)
    kinds = {(p.dtype, p.device.type) for p in model.parameters() if p.dtype != torch.float32}
    if config is None or config.peft_type != "LORA" or kinds - {(torch.bfloat16, "cpu")}:
        return []
    from peft.tuners.lora import Linear, LoraLayer

    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    plain = all(
        type(layer) is Linear
        and type(layer.base_layer) is torch.nn.Linear
        and not (layer.merged or layer.lora_variant or any(layer.lora_bias.values()))
        for layer in layers
    )
    return layers if plain else []


def _adapters(module: Any) -> list[str]:
    """Names of a layer's adapters that are in use."""
    adapted = module is not _base(module) and not module.disable_adapters
    return list(module.active_adapters) if adapted else []


def _sum(module: Any) -> torch.Tensor:
    """Weight of a layer, unpacked, and in float32 its adapters added: [out, in]."""
    import torch

    base = _base(module)
    with torch.no_grad():
        if hasattr(base.weight, "quant_state"):
            from bitsandbytes.functional import dequantize_4bit

            weight: torch.Tensor = dequantize_4bit(base.weight.data, base.weight.quant_state)
            weight = weight.float()
        else:
            weight = base.weight.data
        if weight.dtype == torch.float32:
            for name in _adapters(module):
                weight = weight + module.get_delta_weight(name)
    return weight


_Factors = list[tuple[Any, Any]]
"""An adapter's matrices, [r, in] and [out, r] with its scaling, in the format of the weights."""


def _factors(module: Any) -> _Factors:
    """Factors of the adapters that are not in a layer's sum."""
    import torch

    dtype = _base(module).weight.dtype
    if dtype != torch.bfloat16:
        return []
    return [
        (
            module.lora_A[name].weight.detach().to(dtype),
            (module.scaling[name] * module.lora_B[name].weight.detach()).to(dtype),
        )
        for name in _adapters(module)
    ]


def _linear(
    weight: torch.Tensor, bias: torch.Tensor | None, factors: _Factors
) -> Callable[..., torch.Tensor]:
    from torch.nn.functional import linear

    def forward(x: torch.Tensor, *_arguments: Any, **_options: Any) -> torch.Tensor:
        y = linear(x, weight, bias)
        for down, up in factors:
            y = y + linear(linear(x, down), up)
        return y

    return forward
