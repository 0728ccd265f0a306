"""Random models in the shape of Qwen3-4B: 4-bit, its 16-bit twin, adapters, merges, episodes.

The twin is the dequantised 4-bit model: 16-bit weights equal to those that the 4-bit layers
multiply with. Functions here are the only ones that call bitsandbytes and PEFT.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agent.rollouts.trajectory import FrameRecord, Trajectory, TurnRecord

ROOT = Path(__file__).resolve().parents[2]
RAW, NF4, TWIN, ADAPTER = "raw", "nf4", "twin", "adapter"
"""Folders of the models in the working folder."""
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANK = ALPHA = 16
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_WORDS = 1500
"""Entries of the tokenizer, also where the model's vocabulary is larger."""


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


def kernel_dtype(device: str) -> torch.dtype:
    """Type that a device computes 4-bit layers in: bfloat16 where it has units for it."""
    if device == "cpu":
        return torch.float32
    exact = torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if exact else torch.float16


def write_raw(work: Path, size: WorkSize, device: str) -> int:
    """Write an unquantised model and its tokenizer; returns the number of parameters."""
    config = Qwen3Config(
        **size.config,
        max_position_embeddings=40960,
        tie_word_embeddings=True,
        eos_token_id=2,
        pad_token_id=0,
        bos_token_id=None,
        dtype=kernel_dtype(device),
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen3ForCausalLM._from_config(config, dtype=kernel_dtype(device))
    model.save_pretrained(work / RAW)
    _tokenizer().save_pretrained(work / RAW)
    return sum(weight.numel() for weight in model.parameters())


def write_nf4(work: Path, device: str) -> Any:
    """Quantise the raw model to NF4, write and return it."""
    quantisation = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=kernel_dtype(device),
    )
    model = AutoModelForCausalLM.from_pretrained(
        work / RAW,
        quantization_config=quantisation,
        device_map={"": device},
        dtype=kernel_dtype(device),
    )
    model.save_pretrained(work / NF4)
    AutoTokenizer.from_pretrained(work / RAW).save_pretrained(work / NF4)
    return keep_unpacked(model)


def write_twin(model: Any, work: Path, device: str) -> None:
    """Dequantise an NF4 model in place and write it as its twin."""
    twin = model.dequantize(dtype=kernel_dtype(device))
    # The original format of a quantised checkpoint would quantise again.
    twin.save_pretrained(work / TWIN, save_original_format=False)
    AutoTokenizer.from_pretrained(work / RAW).save_pretrained(work / TWIN)


def load(folder: Path, device: str, dtype: torch.dtype | None = None) -> Any:
    """Load a model of the working folder, in evaluation mode."""
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        device_map={"": device},
        dtype=dtype or kernel_dtype(device),
        attn_implementation="sdpa",
    )
    return keep_unpacked(model).eval()


def keep_unpacked(model: Any) -> Any:
    """The model, with its 4-bit weights in the order in which they were quantised.

    On CPUs with AVX512-BF16, bitsandbytes 0.50 repacks them when a model is evaluated. Then
    `dequantize` and merges give wrong weights, without an error.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model


def with_adapter(model: Any) -> Any:
    """The model with a float32 adapter whose two factors are random."""
    config = LoraConfig(
        task_type="CAUSAL_LM", r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=TARGETS
    )
    adapted = get_peft_model(model, config)
    randomise(adapted)
    return adapted


def randomise(model: Any) -> None:
    """Give an adapter float32 weights that depend on their names alone."""
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            scale = 0.02 if "lora_B" in name else weight.shape[-1] ** -0.5
            weight.data = (torch.randn(weight.shape, generator=generator) * scale).to(weight.device)


def merged(folder: Path, adapter: Path, device: str) -> Any:
    """A model of the working folder with an adapter merged into its weights."""
    adapted: Any = PeftModel.from_pretrained(load(folder, device), str(adapter))
    return adapted.merge_and_unload().eval()


def logits_of(model: Any, ids_B_T: Tensor) -> list[Any]:
    """Logits of each row as float32 on the host, [T, V] each."""
    with torch.no_grad():
        return [row.float().cpu().numpy() for row in model(input_ids=ids_B_T).logits]


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
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))],
        trainers.BpeTrainer(
            vocab_size=_WORDS,
            special_tokens=list(_SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=_SPECIAL[2], pad_token=_SPECIAL[0]
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(_SPECIAL[1:])})
    tokenizer.chat_template = _TEMPLATE
    return tokenizer
