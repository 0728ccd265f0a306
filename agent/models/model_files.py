"""Folders of saved models: their parts, number formats, and the errors of reading them.

A base model is a folder in 16 bit, or in NF4 with its twin. The twin has the weights that the NF4
layers multiply with, in the number format of their arithmetic. An adapter inside belongs to it.
`base_model.py` writes these folders, `hf_policy.py` loads them, and `training/merge.py` merges
adapters onto them.
"""

from __future__ import annotations

import gc
import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from agent.errors import PolicyError, cause, disk_is_full
from agent.settings import NANO, LoraSettings, ModelSettings

TWIN = "twin"
"""Folder of a 4-bit base that has its weights in 16 bit (32 if it was written on a CPU)."""
ADAPTER = "adapter"
"""Folder of a base that has an adapter of its own, for example of supervised training."""
_ERRORS = (OSError, ValueError, TypeError, AttributeError, LookupError, re.error, SafetensorError)
"""What transformers, PEFT and safetensors raise for damaged files."""

logger = logging.getLogger(__name__)


def this_device() -> str:
    """The GPU of this process, else `cpu`."""
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"


def free_memory() -> None:
    """Give the memory of deleted models back, for another process too; torch would keep a GPU's."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def warn_without_gpu(settings: ModelSettings) -> None:
    """Warn if torch finds no GPU for another model than nano, which the CPU then runs."""
    if (settings.source != NANO or settings.quantisation == "nf4") and this_device() == "cpu":
        logger.warning(
            "model.source is %s, but torch finds no GPU: it runs on the CPU. For a large model, "
            "run python -m flows.doctor.",
            settings.source,
        )


def compute_dtype(device: str) -> torch.dtype:
    """Number format of arithmetic: float32 on a CPU, the 16 bits with hardware units on a GPU.

    GPUs before compute capability 8.0, such as the T4, only emulate bfloat16.
    """
    if not device.startswith("cuda"):
        return torch.float32
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if native else torch.float16


def saved_dtype(config: Any, device: str) -> torch.dtype:
    """Number format to load a saved model in, from its transformers config.

    A 4-bit model keeps the one that it was quantised for, because its twin has no other. A model
    saved in float32 keeps it too, and one saved in bfloat16 on a CPU that multiplies in it, which
    is twice as fast. Any other takes that of the device.
    """
    if name := (getattr(config, "quantization_config", None) or {}).get("bnb_4bit_compute_dtype"):
        return getattr(torch, str(name).removeprefix("torch."))
    dtypes = (torch.float32, torch.bfloat16) if _multiplies_bfloat16(device) else (torch.float32,)
    return config.dtype if config.dtype in dtypes else compute_dtype(device)


def _multiplies_bfloat16(device: str) -> bool:
    """Whether a device is a CPU with instructions for products of bfloat16 numbers."""
    units = torch.cpu.get_capabilities() if device == "cpu" else {}
    return bool(units.get("avx512_bf16") or units.get("amx_bf16"))


def keep_unpacked(model: Any) -> None:
    """Keep 4-bit weights as they are stored.

    On CPUs with AVX512-BF16, bitsandbytes 0.50 repacks them when a model is evaluated. Repacked
    weights are rounded to bfloat16, and no gradient passes through them.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def require_inside(folder: Path, name: str) -> None:
    """Check that a model's list of its files of weights names none in another folder.

    Raises:
        PolicyError: it does.
    """
    index = folder / "model.safetensors.index.json"
    parts = json.loads(index.read_text("utf-8"))["weight_map"].values() if index.is_file() else ()
    if strange := sorted(part for part in set(parts) if Path(part).name != part):
        raise PolicyError(f"{name}: {index.name} names {strange[0]}, in another folder.")


def require_targets(model: Any, targets: Sequence[str], name: str) -> None:
    """Check that a model has the layers that get an adapter, which PEFT does not if it finds any.

    Args:
        model: its weights may be missing.
        targets: names of layers (`train.lora.targets`).
        name: name of the model, for the message.

    Raises:
        PolicyError: it lacks one of them.
    """
    places = [f".{place}" for place, _ in model.named_modules()]
    if missing := [t for t in targets if not any(p.endswith(f".{t}") for p in places)]:
        linear = {
            place.rpartition(".")[2]
            for place, module in model.named_modules()
            if isinstance(module, torch.nn.Linear)
        }
        raise PolicyError(
            f"{name}: it has no layer {', '.join(missing)}. Set train.lora.targets to names of its "
            f"linear layers ({', '.join(sorted(linear))})."
        )


def require_lora(base: Path, lora: LoraSettings) -> None:
    """Check that the adapter of a base, if it has one, is that of the settings.

    Raises:
        PolicyError: it differs. A training would go on with it, whatever the settings are.
    """
    path = base / ADAPTER / "adapter_config.json"
    if not path.is_file():
        return
    config = json.loads(path.read_text(encoding="utf-8"))
    targets = config["target_modules"]
    adapter = {"r": config["r"], "alpha": config["lora_alpha"], "targets": targets}
    wanted: dict[str, Any] = {"r": lora.r, "alpha": lora.alpha, "targets": lora.targets}
    if isinstance(targets, list):  # else it is a pattern
        adapter["targets"], wanted["targets"] = sorted(targets), sorted(lora.targets)
    else:
        del adapter["targets"]
    for name, value in adapter.items():
        if value != wanted[name]:
            raise PolicyError(
                f"{base / ADAPTER}: its {name} is {value}, but the training's is "
                f"{wanted[name]}. Run the stage warmstart again, or change train.lora."
            )


@contextmanager
def gradient_fits(micro_batch_tokens: int) -> Iterator[None]:
    """Say what to lower if the card has no memory for the gradient of a micro-batch.

    Raises:
        PolicyError: it has none.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise PolicyError(
            "the GPU has no memory left to train. Lower train.micro_batch_tokens (now "
            f"{micro_batch_tokens}), or set train.gradient_checkpointing."
        ) from error


@contextmanager
def reading(path: str | Path, fix: str) -> Iterator[None]:
    """Turn errors of loading a model into a `PolicyError` that ends with `fix`.

    A `PolicyError` keeps its message, and a full disk its error.
    """
    try:
        yield
    except PolicyError:
        raise
    except _ERRORS as error:
        if disk_is_full(error):
            raise
        if "trust_remote_code" in str(error):
            raise PolicyError(
                f"{path}: the model needs Python code of its own (auto_map), which is never run. "
                "Use a model that transformers supports."
            ) from None
        raise PolicyError(f"{path}: no model can be loaded ({cause(error)}). {fix}") from error
