"""Small GGUF files of random weights, in folders that look like installed packages."""

import json
from pathlib import Path
from typing import Any

import gguf
import torch
from gguf import GGMLQuantizationType
from transformers import LlamaForCausalLM

from helpers.random_model import tokenizer

NAME = "tiny-gguf"
VERSION = "1.2.3"
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe helpful.<|im_end|>\n' }}{% endif %}{{ '<|im_start|>' + "
    "message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def fields(model: LlamaForCausalLM) -> dict[str, Any]:
    """Metadata of a model, as llama.cpp's converter writes it; padding is EOS, as in SmolLM2."""
    config = model.config
    backend = json.loads(tokenizer().backend_tokenizer.to_str())
    special = {added["id"]: 3 if added["special"] else 4 for added in backend["added_tokens"]}
    tokens = [tokenizer().convert_ids_to_tokens(n) for n in range(config.vocab_size)]
    return {
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.block_count": config.num_hidden_layers,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.key_length": 32,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.rope.freq_base": config.rope_parameters["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [special.get(n, 1) for n in range(len(tokens))],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in backend["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def tensors(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """Weights by llama.cpp's names, with the heads in its order."""
    places = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
    found = {}
    for place, weight in model.state_dict().items():
        if place == "lm_head.weight":
            continue
        if "q_proj" in place or "k_proj" in place:
            heads = weight.shape[0] // 32
            weight = weight.reshape(heads, 2, 16, -1).transpose(1, 2).reshape(weight.shape)
        found[places.get_name(place, try_suffixes=(".weight",))] = weight
    return found


def write(
    file: Path,
    model: LlamaForCausalLM,
    changes: dict[str, Any] | None = None,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
) -> Path:
    """Write a model as a GGUF file.

    Args:
        file: file to write.
        model: a Llama with `VOCAB` entries and heads of 32.
        changes: further metadata; None removes a field.
        kind: how matrices are stored.
    """
    whole = {**fields(model), **(changes or {})}
    writer = gguf.GGUFWriter(file, whole.pop("general.architecture", "llama"))
    for name, value in whole.items():
        if value is not None:
            writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value))
    for name, weight in tensors(model).items():
        plain = weight.float().contiguous().numpy()
        stored = kind if plain.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quantize(plain, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def install(site: Path, *files: str) -> Path:
    """Make a folder of `sys.path` hold an installed package with these files; returns theirs."""
    folder = site / NAME.replace("-", "_")
    info = site / f"{folder.name}-{VERSION}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n")
    folder.mkdir()
    (folder / "__init__.py").write_text("raise SystemExit('imported')\n")
    for file in files:
        (folder / file).touch()  # the backport of importlib.metadata leaves missing files out
    listed = [folder / "__init__.py", *(folder / file for file in files), info / "METADATA"]
    (info / "RECORD").write_text("".join(f"{path.relative_to(site)},,\n" for path in listed))
    return folder
