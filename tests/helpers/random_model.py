"""Models of 0.4 million random weights with a small tokenizer and ChatML's template."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from agent.rollouts.trajectory import Trajectory
from agent.settings import ModelSettings, TrainSettings

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3ForCausalLM

    from agent.training.export import Record

ROOT = Path(__file__).parents[2]
VOCAB = 600
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "initializer_range": 0.05,
}
PROJECTIONS = TrainSettings().lora.targets
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>"]


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte pairs of LICENSE, Qwen's special tokens, and the template of Qwen3-Instruct-2507."""
    import trl
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(PLAIN),
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([(ROOT / "LICENSE").read_text()], trainer)
    whole = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    whole.add_tokens([AddedToken(text, special=False, normalized=False) for text in PLAIN])
    whole.add_special_tokens({"additional_special_tokens": SPECIAL[1:]})
    templates = Path(trl.__file__).parent / "chat_templates"
    whole.chat_template = (templates / "qwen3_instruct_2507.jinja").read_text()
    return whole


def qwen(layers: int = 2, dtype: torch.dtype = torch.float32) -> Qwen3ForCausalLM:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, num_hidden_layers=layers)).to(dtype)


def llama(dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 1e5}
    config = LlamaConfig(**SIZES, num_hidden_layers=2, rope_parameters=rope)
    return LlamaForCausalLM(config).to(dtype)


def save_qwen(folder: Path) -> Path:
    """Write the model as it would be on the Hub: 16 bit, with its tokenizer."""
    qwen(dtype=torch.bfloat16).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def write_base(folder: Path, dtype: torch.dtype) -> Path:
    """Write `source`, and its 4-bit `base` as on a device that computes in `dtype`."""
    from agent.models import base_model, model_files

    settings = ModelSettings(source=str(save_qwen(folder / "source")), quantisation="nf4")
    with mock.patch.object(model_files, "compute_dtype", return_value=dtype):
        base_model.prepare_base(settings, folder / "base")
    return folder / "base"


def write_adapter(base: Path, out: Path) -> Path:
    """Write an adapter whose updates are as large as after training."""
    from peft import LoraConfig, get_peft_model

    from agent.policies.hf_policy import load_model

    torch.manual_seed(1)
    config = LoraConfig(r=16, lora_alpha=16, target_modules=PROJECTIONS, task_type="CAUSAL_LM")
    model = get_peft_model(load_model(base)[0], config)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.02)
    model.save_pretrained(out)
    return out


def observed(base: Path, adapter: Path) -> tuple[Record, float]:
    """Record of a base with its adapter, and how far the adapter moves the logits."""
    from agent.models.chat_template import ChatFormat
    from agent.policies.hf_policy import load_model
    from agent.training.export import observe, relative_errors
    from env.models import Message

    model, tokenizer = load_model(base, adapter=adapter)
    chat = ChatFormat(tokenizer)
    prompts = [
        chat.first([Message(role="user", content=f"What does {name} score on Mirbex?")])
        for name in ("Kalvot", "Tonzid", "Fegjup")
    ]
    live = observe(model, prompts, stop_ids=sorted(chat.stop_ids), max_new_tokens=8)
    return live, max(relative_errors(live, load_model(base)[0]))


def play_qwen(model: Any, step: int) -> list[list[Trajectory]]:
    """Two groups of four trees of random tokens, with the model's log-probabilities."""
    from helpers.tiny_trees import play_trees

    return play_trees(model, step, scale=10, more=1)


def qwen_trainer(folder: Path, model: Any, play: Any = play_qwen, **changes: Any):
    """A trainer of three steps."""
    from helpers.tiny_trees import SETTINGS, make_trainer

    own = {"steps": 3, "learning_rate": 1e-3, "micro_batch_tokens": 60}
    settings = TrainSettings.model_validate(SETTINGS.model_dump() | own | changes)
    return make_trainer(folder, settings, play, model=model, tokenizer=tokenizer())


def gradients(trainer: Any) -> dict[str, torch.Tensor]:
    """Gradients of the first step."""
    trainer.live_model.zero_grad()
    trainer.training_step(trainer.live_model, [0])
    named = trainer.live_model.named_parameters()
    return {name: weight.grad.clone() for name, weight in named if weight.grad is not None}


def flat(tensors: dict[str, torch.Tensor] | Sequence[torch.Tensor]) -> torch.Tensor:
    """One vector of all values."""
    values = tensors.values() if isinstance(tensors, dict) else tensors
    return torch.cat([tensor.flatten().float() for tensor in values])
