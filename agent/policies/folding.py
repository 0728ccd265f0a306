"""An adapter folded into the weights of a model while it plays.

An adapter costs a small model up to a third of each decoding step, and 4-bit layers on a CPU unpack
their weights in each. Only float32 arithmetic is folded: shorter numbers would round a small update
away. Neighbour: `hf_policy.py` samples from the folded model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@contextmanager
def folded(model: Any) -> Iterator[None]:
    """Merge LoRA weights into the model for the duration of the block.

    A 4-bit model on a CPU multiplies with unpacked weights instead, and its own do not change.
    Other models with a weight shorter than float32 stay as they are.
    """
    import torch

    config = getattr(model, "active_peft_config", None)
    layers = _packed(model)
    if layers:
        with _unpacked(layers):
            yield
        return
    exact = all(p.dtype == torch.float32 for p in model.parameters())
    if config is None or config.peft_type != "LORA" or not exact:
        yield
        return
    kept = [(p, p.detach().clone()) for p in model.parameters() if not p.requires_grad]
    model.merge_adapter()
    try:
        yield
    finally:
        model.unmerge_adapter()
        with torch.no_grad():
            # Unmerging subtracts the update, which changes the last digits.
            for weight, value in kept:
                weight.copy_(value)


def _packed(model: Any) -> dict[Any, Any]:
    """4-bit layers of a model that computes in float32 on a CPU, and the layers that call them.

    Returns:
        The 4-bit layer by the layer with its adapter, or by itself; empty for other models.
    """
    import torch

    found: dict[Any, Any] = {}
    for module in model.modules():
        base = getattr(module, "base_layer", module)
        if hasattr(base.weight if hasattr(base, "weight") else None, "quant_state"):
            if base.weight.device.type != "cpu" or base.compute_dtype != torch.float32:
                return {}
            if base not in found.values():
                found[module] = base
    return found


@contextmanager
def _unpacked(layers: dict[Any, Any]) -> Iterator[None]:
    """Let layers multiply with the unpacked sum of their 4-bit weights and their adapters."""
    for module, base in layers.items():
        module.forward = _linear(_weight(module, base), base.bias)
    try:
        yield
    finally:
        for module in layers:
            del module.forward


def _weight(module: Any, base: Any) -> torch.Tensor:
    """Unpacked weights of a layer, shape [out, in], float32."""
    import torch
    from bitsandbytes.functional import dequantize_4bit

    with torch.no_grad():
        weight: torch.Tensor = dequantize_4bit(base.weight.data, base.weight.quant_state).float()
        if module is not base and not module.disable_adapters:
            for name in module.active_adapters:
                weight = weight + module.get_delta_weight(name)
    return weight


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Callable[..., torch.Tensor]:
    from torch.nn import functional

    return lambda x, *_args, **_kwargs: functional.linear(x, weight, bias)
