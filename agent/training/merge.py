"""Merge of an adapter into its base: one file at a time, one tensor at a time.

Weights are added in float32 and rounded once. An adapter of a 4-bit base is merged onto the twin
that the warm start wrote. Only the twin has the weights that the adapter was trained with. A merge
into the 4-bit weights would round the training away (measured: logits off by 50 %). One onto the
model from before the quantisation is as wrong (47 %). Neighbours: `export.py` checks the result.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftConfig
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from agent.errors import ExportError
from agent.models import model_files

INDEX = "model.safetensors.index.json"
"""File that says which tensor is in which file, if there are several."""


def merge(base: Path, adapter: Path, out: Path, *, dtype: str) -> None:
    """Write `base` with `adapter` merged, and the tokenizer, in 16 bit.

    Args:
        base: base of the adapter.
        adapter: PEFT adapter.
        out: folder to write.
        dtype: `float16` or `bfloat16`.

    Raises:
        ExportError: the base is quantised and has no twin, the adapter is not plain LoRA of this
            base, or a weight overflows the dtype.
    """
    source = mergeable(base)
    updates, scale = read_adapter(adapter)
    left = set(updates)
    wanted = getattr(torch, dtype)
    out.mkdir(parents=True, exist_ok=True)
    total = 0
    for path in sorted(source.glob("model*.safetensors")):
        tensors = {}
        for name, stored in _tensors(path):
            weight = stored.float()
            if name in updates:
                b, a = updates[name]
                if weight.shape != (b.shape[0], a.shape[1]):
                    raise ExportError(
                        f"{adapter}: {source} has a {name} of another size. The adapter belongs to "
                        "another base."
                    )
                weight = weight + (b @ a) * scale
                left.remove(name)
            tensors[name] = _rounded(name, weight, wanted)
        total += sum(tensor.nbytes for tensor in tensors.values())
        save_file(tensors, out / path.name, metadata={"format": "pt"})
    if left:
        raise ExportError(
            f"{adapter}: {source} has no weight {min(left)} ({len(left)} of {len(updates)} are "
            "missing). The adapter belongs to another base."
        )
    if (source / INDEX).exists():
        index = json.loads((source / INDEX).read_text(encoding="utf-8"))
        index["metadata"]["total_size"] = total
        (out / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    config.dtype = wanted
    config.save_pretrained(out)
    if (source / "generation_config.json").exists():
        GenerationConfig.from_pretrained(source).save_pretrained(out)
    AutoTokenizer.from_pretrained(source, trust_remote_code=False).save_pretrained(out)


def mergeable(base: Path) -> Path:
    """Folder of the weights that an adapter is merged onto: the base, or its twin in 16 bit.

    Raises:
        ExportError: the base is quantised and has no twin.
    """
    if "quantization_config" not in json.loads((base / "config.json").read_text(encoding="utf-8")):
        return base
    twin = base / model_files.TWIN
    if not twin.is_dir():
        raise ExportError(
            f"{base} has quantised weights and no {twin.name} (a merge would round the training "
            "away). Run the stage warmstart again."
        )
    return twin


def read_adapter(folder: Path) -> tuple[dict[str, tuple[torch.Tensor, torch.Tensor]], float]:
    """LoRA weights (B, A) in float32 by the name of the weight that they change, and their scale.

    Raises:
        ExportError: it is not plain LoRA of linear layers.
    """
    config: Any = PeftConfig.from_pretrained(str(folder))
    special = ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save")
    used = [name for name in (*special, "fan_in_fan_out") if getattr(config, name, None)]
    if not isinstance(config, LoraConfig) or used or config.bias != "none":
        raise ExportError(f"{folder}: only plain LoRA can be merged (found {used or config.bias}).")
    halves = dict(_tensors(folder / "adapter_model.safetensors"))
    updates = {}
    for name, a in halves.items():
        if name.endswith(".lora_A.weight"):
            place = name.removesuffix(".lora_A.weight")
            b = halves[f"{place}.lora_B.weight"]
            updates[f"{place.removeprefix('base_model.model.')}.weight"] = (b.float(), a.float())
    return updates, config.lora_alpha / config.r


def _tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of a file, each read when it is asked for."""
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is not a mapping
            yield name, file.get_tensor(name)


def _rounded(name: str, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    rounded = weight.to(dtype)
    if not rounded.isfinite().all():
        shown = str(dtype).removeprefix("torch.")
        raise ExportError(f"{name}: not finite in {shown}. Set export.dtype=bfloat16.")
    return rounded
