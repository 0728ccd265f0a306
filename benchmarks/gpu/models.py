"""Random models in the shape of Qwen3-4B: 4-bit, its 16-bit twin, and episodes.

`agent/models/base_model.py` quantises them and writes the twin, as the stage `warmstart` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from agent.models import base_model, model_files
from agent.models.model_files import compute_dtype
from agent.nano.tokenizer import train_bpe
from agent.rollouts.trajectory import FrameRecord, Trajectory, TurnRecord
from agent.settings import ModelSettings

ROOT = Path(__file__).resolve().parents[2]
RAW, NF4, TWIN = "raw", "nf4", f"nf4/{model_files.TWIN}"
"""Folders of the models in the working folder."""
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_WORDS = 1500
"""Most entries of the tokenizer, also where the model's vocabulary is larger."""


@dataclass(frozen=True)
class WorkSize:
    """Sizes of a model and of the work that it is measured on."""

    config: dict[str, Any]
    """Shape of the model, as arguments of `Qwen3Config`."""
    frame_tokens: int
    turn_tokens: int
    frames: tuple[int, ...]
    """Numbers of frames that are decoded together."""
    micro_batch_tokens: tuple[int, ...]


FULL = WorkSize(
    config={
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
    frame_tokens=2048,
    turn_tokens=256,
    frames=(8, 32, 64),
    micro_batch_tokens=(2048, 8192, 16384),
)
TINY = WorkSize(
    config={
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 1600,
    },
    frame_tokens=96,
    turn_tokens=12,
    frames=(4,),
    micro_batch_tokens=(1024,),
)


def write_raw(work: Path, size: WorkSize, device: str) -> int:
    """Write an unquantised model and its tokenizer; returns the number of parameters."""
    config = Qwen3Config(
        **size.config,
        max_position_embeddings=40960,
        tie_word_embeddings=True,
        eos_token_id=2,
        pad_token_id=0,
        bos_token_id=None,
        dtype=compute_dtype(device),
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen3ForCausalLM._from_config(config, dtype=compute_dtype(device))
    model.save_pretrained(work / RAW)
    _tokenizer().save_pretrained(work / RAW)
    return sum(weight.numel() for weight in model.parameters())


def write_base(work: Path, device: str) -> None:
    """Quantise the raw model to NF4, and write it with its twin."""
    settings = ModelSettings(source=str(work / RAW), quantisation="nf4")
    base_model.prepare_base(settings, work / NF4, device=device)


def log_probs(model: Any, ids: Sequence[int], count: int) -> list[float]:
    """Log-probabilities of the last `count` of the ids, by one pass over all of them."""
    ids_1_T = torch.tensor([list(ids)], device=model.device)
    with torch.no_grad():
        logits = model(input_ids=ids_1_T, logits_to_keep=count + 1).logits[0, :-1].float()
    found = torch.log_softmax(logits, -1).gather(-1, ids_1_T[0, -count:, None])
    return [float(value) for value in found[:, 0]]


def random_ids(shape: tuple[int, int], device: str) -> Tensor:
    """Random ids of the tokenizer without special tokens."""
    generator = torch.Generator().manual_seed(2)
    return torch.randint(len(_SPECIAL), _WORDS, shape, generator=generator).to(device)


def random_trees(size: WorkSize) -> Callable[[Any, int], list[list[Trajectory]]]:
    """A rollout: two groups of four trees of random tokens, with the model's log-probabilities."""

    def turn(
        model: Any, rng: np.random.Generator, before: Sequence[TurnRecord], prompt: int
    ) -> TurnRecord:
        ids = [int(i) for i in rng.integers(len(_SPECIAL), _WORDS, prompt + size.turn_tokens)]
        read = [i for one in before for i in one.prompt_ids + one.sampled_ids]
        return TurnRecord(
            "",
            "",
            "stop",
            prompt_ids=ids[:prompt],
            sampled_ids=ids[prompt:],
            logprobs=log_probs(model, read + ids, size.turn_tokens),
        )

    def tree(model: Any, step: int, problem: int, episode: int) -> Trajectory:
        rng = np.random.default_rng([step, problem, episode])
        first = turn(model, rng, [], size.frame_tokens // 2)
        second = turn(model, rng, [first], size.frame_tokens // 8)
        frames = {0: FrameRecord(0, None, 0, "rlm", [first, second], "final")}
        for child in (1, 2):
            only = turn(model, rng, [], size.frame_tokens // 2)
            frames[child] = FrameRecord(child, 0, 1, "rlm", [only], "final")
        return Trajectory(f"p{problem}", "easy", frames=frames, reward=float(rng.random()))

    return lambda model, step: [[tree(model, step, p, e) for e in range(4)] for p in range(2)]


def _tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer trained on the project's documents."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))]
    tokenizer = train_bpe(texts, r" ?\S+|\s+", _WORDS, _SPECIAL, eos=_SPECIAL[2])
    tokenizer.chat_template = _TEMPLATE
    return tokenizer
