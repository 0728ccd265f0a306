"""Small GGUF files of random weights, in folders that look like installed packages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quantize
from transformers import PreTrainedModel

from helpers.random_model import tokenizer

NAME = "tiny-gguf"
VERSION = "1.2.3"
PRE = {"llama": "smollm", "qwen2": "qwen2", "qwen3": "qwen2"}
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe helpful.<|im_end|>\n' }}{% endif %}{{ '<|im_start|>' + "
    "message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def fields(model: PreTrainedModel) -> dict[str, Any]:
    """Metadata of a model, as llama.cpp's converter writes it; padding is EOS, as in SmolLM2."""
    config, name = model.config, model.config.model_type
    backend = json.loads(tokenizer().backend_tokenizer.to_str())
    special = {added["id"]: 3 if added["special"] else 4 for added in backend["added_tokens"]}
    tokens = [tokenizer().convert_ids_to_tokens(n) for n in range(config.vocab_size)]
    return {
        f"{name}.context_length": config.max_position_embeddings,
        f"{name}.embedding_length": config.hidden_size,
        f"{name}.block_count": config.num_hidden_layers,
        f"{name}.feed_forward_length": config.intermediate_size,
        f"{name}.attention.head_count": config.num_attention_heads,
        f"{name}.attention.head_count_kv": config.num_key_value_heads,
        f"{name}.attention.key_length": 32,
        f"{name}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{name}.rope.freq_base": config.rope_parameters["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": PRE[name],
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [special.get(n, 1) for n in range(len(tokens))],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in backend["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Weights by llama.cpp's names, with the heads of a Llama in its order."""
    name = model.config.model_type
    (arch,) = (key for key, text in MODEL_ARCH_NAMES.items() if text == name)
    places = get_tensor_name_map(arch, model.config.num_hidden_layers)
    found = {}
    for place, weight in model.state_dict().items():
        if place == "lm_head.weight":
            continue
        if name == "llama" and ("q_proj" in place or "k_proj" in place):
            heads = weight.shape[0] // 32
            weight = weight.reshape(heads, 2, 16, -1).transpose(1, 2).reshape(weight.shape)
        found[places.get_name(place, try_suffixes=(".weight", ".bias"))] = weight
    return found


def write(
    file: Path,
    model: PreTrainedModel,
    changes: dict[str, Any] | None = None,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    more: dict[str, torch.Tensor | None] | None = None,
) -> Path:
    """Write a model as a GGUF file.

    Args:
        file: file to write.
        model: a Llama, Qwen2 or Qwen3 with `VOCAB` entries and heads of 32.
        changes: further metadata; None removes a field.
        kind: how matrices are stored.
        more: further tensors; None removes one.
    """
    whole = {**fields(model), **(changes or {})}
    writer = GGUFWriter(file, whole.pop("general.architecture", model.config.model_type))
    for name, value in whole.items():
        if value is not None:
            _add(writer, name, value)
    for name, weight in {**tensors(model), **(more or {})}.items():
        if weight is not None:
            plain = weight.float().contiguous().numpy()
            stored = kind if plain.ndim == 2 else GGMLQuantizationType.F32
            writer.add_tensor(name, quantize(plain, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add(writer: GGUFWriter, name: str, value: Any) -> None:
    add = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    add[type(value)](name, value)


def install(site: Path, *files: str, name: str = NAME) -> Path:
    """Make a folder of `sys.path` hold an installed package with these files; returns theirs."""
    info = site / f"{name.replace('-', '_')}-{VERSION}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSION}\n")
    folder = site / name.replace("-", "_")
    folder.mkdir()
    (folder / "__init__.py").write_text("raise SystemExit('imported')\n")
    for file in files:
        (folder / file).touch()  # the backport of importlib.metadata leaves missing files out
    listed = [folder / "__init__.py", *(folder / file for file in files), info / "METADATA"]
    record = "".join(f"{path.relative_to(site)},,\n" for path in listed)
    (info / "RECORD").write_text(record)
    return folder
