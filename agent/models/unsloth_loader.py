"""Models of Unsloth, for our own trainer.

Unsloth replaces parts of transformers and TRL when it is imported. Our trainer must be imported
first: it then subclasses TRL's own class, and its gradients stay the same. Of Unsloth, only the
kernels and the loader are used, not its trainers, its merge or its vLLM.

Its models cut sequences that are longer than `max_seq_length`, without a message.
Source: Unsloth 2026.10.7.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.errors import PolicyError
from agent.models import model_files

if TYPE_CHECKING:
    from agent.settings import LoraSettings

TRAINERS = ("agent.training.trainer", "agent.demonstrations.supervised")
"""Modules with a trainer, one of which must be imported before Unsloth."""
_MISSING = "Unsloth is not installed. Run make setup-cuda"


def require_unsloth() -> None:
    """Check for Unsloth and a GPU, without importing Unsloth.

    Raises:
        PolicyError: Unsloth is not installed, or torch finds no GPU.
    """
    other = "or set model.backend=transformers."
    if importlib.util.find_spec("unsloth") is None:
        raise PolicyError(f"{_MISSING}, {other}")
    if model_files.this_device() == "cpu":
        raise PolicyError(
            "model.backend is 'unsloth', which needs a GPU, but torch finds none. Run python -m "
            f"flows.doctor, {other}"
        )


def load_with_unsloth(
    folder: Path, lora: LoraSettings, *, max_seq_length: int, seed: int
) -> tuple[Any, Any]:
    """Load a base model with an adapter, its own or a new one, for training on a GPU.

    Args:
        folder: base model, in 16 bit or NF4.
        lora: the adapter; one of the base's own must have the same rank and layers.
        max_seq_length: most tokens of a conversation.
        seed: of the new adapter's weights.

    Raises:
        PolicyError: Unsloth is not installed or finds no GPU, or was imported too early. Or the
            base has another adapter.
    """
    model_files.require_lora(folder, lora)
    if sys.modules.keys().isdisjoint(TRAINERS):
        raise PolicyError(f"Unsloth would replace TRL's trainers. Import {TRAINERS[0]} first.")
    # Else it fetches files from the Hub to be counted, which can take two minutes for each.
    os.environ["UNSLOTH_DISABLE_STATISTICS"] = "1"
    try:
        from unsloth import FastLanguageModel
    except ImportError:
        raise PolicyError(f"{_MISSING}.") from None
    except NotImplementedError as error:  # it says this without a GPU
        raise PolicyError(
            f"Unsloth cannot be used here ({error}). Use a machine with a GPU."
        ) from None
    from peft import load_peft_weights, set_peft_model_state_dict
    from transformers import AutoConfig

    device = model_files.this_device()
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    model, tokenizer = FastLanguageModel.from_pretrained(
        model_name=str(folder),
        max_seq_length=max_seq_length,
        dtype=model_files.saved_dtype(config, device),
        load_in_4bit=getattr(config, "quantization_config", None) is not None,
        device_map={"": device},
        use_gradient_checkpointing="unsloth",
        fast_inference=False,
        random_state=seed,
        trust_remote_code=False,
    )
    model = FastLanguageModel.get_peft_model(
        model,
        r=lora.r,
        target_modules=lora.targets,
        lora_alpha=lora.alpha,
        lora_dropout=0.0,
        bias="none",
        use_gradient_checkpointing="unsloth",
        random_state=seed,
        max_seq_length=max_seq_length,
    )
    if (own := folder / model_files.ADAPTER).is_dir():
        set_peft_model_state_dict(model, load_peft_weights(str(own), device=device))
    return model, tokenizer
