"""Base models from the Hub, a folder or an installed package: checked, and written as models/base.

Only weights in safetensors or GGUF are read, and no code of the model is run. A base is stored in
16 bit, or in NF4 (double quantisation) with its twin. The twin has, bit for bit, the weights that
the NF4 layers multiply with. Adapters are merged onto it and servers can serve it, since a merge
into 4 bit would round the training away. Neighbours: `tasks/warmstart.py` calls it,
`gguf_source.py` reads packages, `model_files.py` names the parts, `hf_policy.py` loads them.

The token for the Hub comes only from the environment variable HF_TOKEN.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import httpx
import torch
from huggingface_hub import HfApi, constants, errors, snapshot_download, try_to_load_from_cache
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from agent.decoding.row_buffer import require_playable
from agent.errors import PolicyError, cause, disk_is_full
from agent.models import gguf_source, model_files
from agent.models.chat_template import bake
from agent.models.model_files import TWIN
from agent.settings import PACKAGE, ModelSettings
from env.cgroups import machine_bytes

SHARD = "2GB"
"""Largest file of weights. A merge reads one at a time, so this bounds its memory."""
_SMALL = re.compile(r"[^/]+\.(json|jinja|txt|model)")
"""Files beside the weights: config, tokenizer, chat template. Never Python code."""
_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
_PICKLED = re.compile(r"[^/]+\.(bin|pt|pth|ckpt|h5|msgpack)")
_WAIT_S = 30.0
"""Seconds that one request to the Hub may take."""
_PROGRAM_BYTES = 3e9
"""Memory of the stages and their servers, as for nano."""
_TRAINED_BYTES = 8
"""Of each weight on a CPU: float32, and a copy while an adapter is merged and compared."""
_ACTIVE_BYTES, _MOST_ACTIVE = 16, 2e9
"""Activations of a micro-batch for each weight, and at most."""
_FIX = "Set model.source to a causal language model that transformers supports."


@dataclass(frozen=True)
class SourceModel:
    """A model before its weights are fetched."""

    name: str
    sizes: dict[str, int]
    """Bytes of each file at the top of the model's folder."""
    parameters: int
    commit: str | None
    """Commit on the Hub; None for a folder or a package."""
    packed: gguf_source.GgufModel | None = None
    """The file of an installed package; `sizes` are then those of its unpacked copy."""

    @property
    def origin(self) -> str:
        """Name and commit, or name and version of the package."""
        if self.packed:
            return f"{self.name}=={self.packed.package.version}"
        return f"{self.name}@{self.commit}" if self.commit else self.name

    @property
    def weights(self) -> list[str]:
        """Names of the files with the weights."""
        return [name for name in self.sizes if _WEIGHTS.fullmatch(name)]


def prepare_base(settings: ModelSettings, out: Path, *, targets: Sequence[str] = ()) -> SourceModel:
    """Write `model.source` as a base model.

    Args:
        settings: the section `model`, with a source other than nano.
        out: folder to write: the model and its tokenizer; with `nf4`, the same in `twin/`.
        targets: names of layers that will get an adapter.

    Raises:
        PolicyError: the model does not exist, is not accessible, or has no safetensors or GGUF. Or
            it is an adapter, is quantised already, lacks a layer of `targets`, cannot be played, or
            the disk or the memory has no room.
    """
    device = model_files.this_device()
    dtype = model_files.compute_dtype(device)
    source = require_source(settings, out, device)
    with TemporaryDirectory() as unpacked:
        small = [name for name in source.sizes if _SMALL.fullmatch(name)]
        folder = _fetch(settings, source, small, Path(unpacked))
        with model_files.reading(source.name, _FIX):
            tokenizer = _check(folder, source, settings, targets)
            _fetch(settings, source, source.weights, Path(unpacked))
            _write(folder, tokenizer, settings, dtype, device, out)
    return source


def require_source(settings: ModelSettings, out: Path, device: str) -> SourceModel:
    """Look up a model's files, and check that disk and memory have room, without fetching any.

    Raises:
        PolicyError: see `prepare_base`.
    """
    source = find_source(settings)
    require_space(source, settings, model_files.compute_dtype(device), out)
    if device == "cpu":
        require_memory(source)
    return source


def find_source(settings: ModelSettings) -> SourceModel:
    """Look up a model's files, without fetching any.

    Raises:
        PolicyError: see `prepare_base`.
    """
    folder = Path(settings.source)
    if settings.source.startswith(PACKAGE):
        model = _in_package(settings.source)
    elif folder.is_dir():
        sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
        with model_files.reading(folder, _FIX):
            parameters = sum(_parameters(folder / n) for n in sizes if _WEIGHTS.fullmatch(n))
        model = SourceModel(settings.source, sizes, parameters, commit=None)
    elif folder.is_absolute() or settings.source.startswith(".") or settings.source.count("/") > 1:
        raise PolicyError(f"{folder}: no such folder. Correct model.source.")
    else:
        model = _ask_hub(settings)
    own = model_files.ADAPTER
    if "adapter_config.json" in model.sizes or (model.commit is None and (folder / own).is_dir()):
        raise PolicyError(
            f"{model.name}: it has an adapter, which no base can be made from. Set model.source "
            "to the model without it, or merge it first (stage export)."
        )
    if not model.weights:
        pickled = next(filter(_PICKLED.fullmatch, sorted(model.sizes)), None)
        why = f"it has pickled weights ({pickled})" if pickled else "it has no weights"
        raise PolicyError(
            f"{model.name}: no model.safetensors was found ({why}). Only safetensors are read: set "
            "model.source to a model that has them, or convert it."
        )
    if "config.json" not in model.sizes:
        raise PolicyError(f"{model.name}: config.json is missing. {_FIX}")
    return model


def require_space(
    source: SourceModel, settings: ModelSettings, dtype: torch.dtype, out: Path
) -> None:
    """Check the free space before anything is fetched.

    It must hold the download or the unpacked copy, the base, its twin, and the merged model of the
    stage `export`. Files in the cache of the Hub's client are not downloaded again.

    Raises:
        PolicyError: the space is too small.
    """
    nf4, billions = settings.quantisation == "nf4", source.parameters / 1e9
    parts = {
        "base": billions * (0.75 if nf4 else 2),  # 4-bit layers with their scales, 16-bit embedding
        "twin": billions * dtype.itemsize if nf4 else 0.0,
        "merged model": billions * 2,
    }
    needed = {_disk(out): sum(parts.values())}
    if source.commit is not None or source.packed:
        what, place = ("unpacked", gettempdir()) if source.packed else ("download", _cache())
        missing = [name for name in source.weights if source.packed or not _cached(source, name)]
        parts = {what: sum(source.sizes[name] for name in missing) / 1e9, **parts}
        disk = _disk(Path(place))
        needed[disk] = needed.get(disk, 0.0) + parts[what]
    for disk, size in needed.items():
        free = shutil.disk_usage(disk).free / 1e9
        if free < size:
            shown = ", ".join(f"{name} {part:.1f}" for name, part in parts.items() if part)
            raise PolicyError(
                f"{source.name}: {disk} has {free:.1f} GB free, but {size:.1f} GB are needed (GB: "
                f"{shown}). Make room, or choose a smaller model.source."
            )


def require_memory(source: SourceModel) -> None:
    """Check that this machine, or its control group, has the memory to train a model on its CPU.

    Raises:
        PolicyError: it is estimated to have too little.
    """
    active = min(_ACTIVE_BYTES * source.parameters, _MOST_ACTIVE)
    needed = _PROGRAM_BYTES + _TRAINED_BYTES * source.parameters + active
    if (memory := machine_bytes()) < needed:
        raise PolicyError(
            f"{source.name}: {source.parameters / 1e6:,.0f} million weights need "
            f"{needed / 1e9:.1f} GB of memory to be trained in float32 on a CPU, but this machine "
            f"or its container has {memory / 1e9:.1f} GB. Use a larger one, or a smaller "
            "model.source, such as nano."
        )


def _disk(path: Path) -> Path:
    """Nearest existing folder; it is the same for paths on one file system."""
    path = path.absolute()
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    device = existing.stat().st_dev
    while existing.parent.stat().st_dev == device and existing != existing.parent:
        existing = existing.parent
    return existing


def _parameters(path: Path) -> int:
    """Number of weights in a file of safetensors, from its header."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError(f"{path.name} is not a file of safetensors")
        header = json.loads(file.read(length))
    return sum(math.prod(header[name]["shape"]) for name in header if name != "__metadata__")


def _cache() -> Path:
    return Path(constants.HF_HUB_CACHE)


def _cached(source: SourceModel, name: str) -> bool:
    path = try_to_load_from_cache(source.name, name, cache_dir=_cache(), revision=source.commit)
    return isinstance(path, str)  # else it is unknown, or known to be absent


def _access() -> dict[str, Any]:
    """Address of the Hub and token; a token that a login stored on disk is not used."""
    return {"endpoint": os.environ.get("HF_ENDPOINT"), "token": os.environ.get("HF_TOKEN") or False}


def _ask_hub(settings: ModelSettings) -> SourceModel:
    with _hub_errors(settings):
        info = HfApi(**_access()).model_info(
            settings.source, revision=settings.revision, timeout=_WAIT_S, files_metadata=True
        )
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    sizes = {name: size for name, size in sizes.items() if "/" not in name}
    weights = sum(size for name, size in sizes.items() if _WEIGHTS.fullmatch(name))
    counted = info.safetensors.total if info.safetensors else weights // 2
    return SourceModel(settings.source, sizes, counted, info.sha)


def _in_package(name: str) -> SourceModel:
    """The model of an installed package, with the files that its unpacked copy will have."""
    packed = gguf_source.GgufModel(gguf_source.find_package(name.removeprefix(PACKAGE)))
    sizes = {"config.json": 0, "model.safetensors": 4 * packed.parameters}
    return SourceModel(name, sizes, packed.parameters, commit=None, packed=packed)


def _fetch(settings: ModelSettings, source: SourceModel, names: list[str], unpacked: Path) -> Path:
    """Folder with these files of the model.

    Those of the Hub are in the cache of its client; those of a package are unpacked to `unpacked`.
    """
    if source.packed:
        if names == source.weights:
            source.packed.unpack_weights(unpacked)
        else:
            source.packed.unpack_small(unpacked)
        return unpacked
    if source.commit is None:
        return Path(source.name)
    options = {"revision": source.commit, "cache_dir": _cache(), **_access()}
    with _hub_errors(settings):
        return Path(snapshot_download(source.name, allow_patterns=names, **options))


@contextmanager
def _hub_errors(settings: ModelSettings) -> Iterator[None]:
    name = settings.source
    state = "set" if os.environ.get("HF_TOKEN") else "not set"
    try:
        yield
    except errors.GatedRepoError:
        raise PolicyError(
            f"{name}: the model is gated. Accept its terms on its page of the Hub, and set the "
            f"environment variable HF_TOKEN to a token of that account (it is {state})."
        ) from None
    except errors.RevisionNotFoundError:
        raise PolicyError(
            f"{name}: revision {settings.revision} does not exist. Correct model.revision."
        ) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise PolicyError(
            f"{name}: neither a folder nor a model on the Hub. Correct model.source; a private "
            f"model needs the environment variable HF_TOKEN (it is {state})."
        ) from None
    except (httpx.HTTPError, OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        # The last four: something else replied, such as a page that asks to log in.
        if disk_is_full(error):
            raise
        where = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        again = "Unset HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else "Run the same command again"
        raise PolicyError(
            f"{name}: the Hub at {where} did not answer as a Hub does ({cause(error)}). {again} "
            "to continue the download, or set model.source to a local folder."
        ) from None


def _check(
    folder: Path, source: SourceModel, settings: ModelSettings, targets: Sequence[str]
) -> Any:
    """Check a model by its small files. Returns its tokenizer, with the template of the settings.

    Raises:
        PolicyError: the model is quantised already, lacks a layer, or cannot be played.
    """
    if "quantization_config" in json.loads((folder / "config.json").read_text(encoding="utf-8")):
        raise PolicyError(
            f"{source.name}: the weights are quantised already. Set model.source to the 16-bit "
            "model and model.quantisation=nf4."
        )
    model_files.require_inside(folder, source.name)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    require_playable(config, source.name)
    model_files.require_targets(empty, targets, source.name)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    tokenizer.name_or_path = source.name  # for messages; a folder of the cache says nothing
    bake(tokenizer, settings)
    if source.packed:
        gguf_source.require_end_of_turn(tokenizer)
    return tokenizer


def _write(
    folder: Path,
    tokenizer: Any,
    settings: ModelSettings,
    dtype: torch.dtype,
    device: str,
    out: Path,
) -> None:
    """Write the model of a folder with a tokenizer, and the twin of a 4-bit model."""
    nf4 = settings.quantisation == "nf4"
    own = AutoConfig.from_pretrained(folder, trust_remote_code=False).dtype
    options: dict[str, Any] = {"dtype": dtype}
    if nf4:
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
            bnb_4bit_quant_storage=torch.uint8,
        )
    elif dtype == torch.float32:  # on a CPU, the model is stored in its own 16 bits
        options["dtype"] = torch.bfloat16 if own == torch.bfloat16 else torch.float16
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, device_map={"": device}, trust_remote_code=False, use_safetensors=True, **options
    )
    model.save_pretrained(out, max_shard_size=SHARD)
    tokenizer.save_pretrained(out)
    if nf4:
        twin = model.dequantize(dtype=dtype)
        twin.save_pretrained(out / TWIN, max_shard_size=SHARD, save_original_format=False)
        tokenizer.save_pretrained(out / TWIN)
