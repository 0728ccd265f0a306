"""Weights that are trained: a new adapter, or the base's own; in float32.

An optimizer step changes a weight by less than 16 bits can hold. TRL 1.15 casts the adapters of a
4-bit base to bfloat16; at a learning rate of 1e-5, 97 % of their values then never change.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, PeftModel

from agent.errors import LogprobCheckError
from agent.models.model_files import require_targets
from agent.settings import TrainSettings


def new_adapter(model: Any, settings: TrainSettings) -> LoraConfig | None:
    """Config of the adapter that TRL adds; None if the base has one.

    Raises:
        PolicyError: the base lacks a layer that is to be adapted.
    """
    if isinstance(model, PeftModel):
        model.set_adapter(model.active_adapter)  # loaded for inference, it is frozen
        return None
    require_targets(model, settings.lora.targets, "the base model")
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.lora.r,
        lora_alpha=settings.lora.alpha,
        lora_dropout=0.0,
        target_modules=settings.lora.targets,
        bias="none",
    )


def own_adapter(model: Any) -> dict[str, torch.Tensor]:
    """Copies of an adapter's weights by name, before TRL rounds them; empty without one."""
    return copies(model) if isinstance(model, PeftModel) else {}


def copies(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the trained weights by name."""
    return {
        name: weight.detach().clone()
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }


def restore_float32(model: torch.nn.Module, originals: dict[str, torch.Tensor]) -> None:
    """Give trained weights float32 again, and those in `originals` their values."""
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            weight.data = originals.get(name, weight.data).to(weight.device, torch.float32)


def not_finite(model: torch.nn.Module) -> str | None:
    """Name of a trained weight that is NaN or infinite."""
    for name, weight in model.named_parameters():
        if weight.requires_grad and not weight.isfinite().all():
            return name
    return None


def require_finite(model: torch.nn.Module, step: int) -> None:
    """Stop a run whose weights are broken. Log-probabilities need not show it.

    Attention kernels of some CPUs take NaN for the smallest score.

    Raises:
        LogprobCheckError: a trained weight is NaN or infinite.
    """
    if name := not_finite(model):
        raise LogprobCheckError(
            f"step {step}: the weight {name} is not finite. Lower train.learning_rate, and run "
            "again to continue from the last checkpoint."
        )
