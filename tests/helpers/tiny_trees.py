"""A model, a tokenizer and turns so small that a loss can be written out beside the trainer's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from agent.rollouts.trajectory import TurnRecord
from env.models import Finish

VOCAB = 32


def tiny_model(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models

    words = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, VOCAB)}}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )


@torch.no_grad()
def logprobs(model: torch.nn.Module, ids: list[int], last: int) -> list[float]:
    """Log-probabilities of the last tokens."""
    logits = model(input_ids=torch.tensor([ids])).logits[0, -last - 1 : -1]
    found = torch.log_softmax(logits.float(), -1)
    return found.gather(1, torch.tensor(ids[-last:])[:, None])[:, 0].tolist()


def random_turn(
    model: torch.nn.Module,
    rng: np.random.Generator,
    before: Sequence[TurnRecord],
    prompt: list[int],
    length: int,
    finish: Finish = "stop",
) -> TurnRecord:
    """A turn of random tokens, with the model's log-probabilities of them."""
    sampled = [int(token) for token in rng.integers(2, VOCAB, length)]
    read = [t for record in before for t in record.prompt_ids + record.sampled_ids]
    said = logprobs(model, read + prompt + sampled, length)
    return TurnRecord("", "", finish, prompt_ids=prompt, sampled_ids=sampled, logprobs=said)
