"""A model, a tokenizer and turns so small that a loss can be written out beside the trainer's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from agent.rollouts.trajectory import Trajectory, TurnRecord
from env.models import Finish

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB = 32


def tiny_model(seed: int = 0) -> LlamaForCausalLM:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, VOCAB)}}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )


def random_turn(
    rng: np.random.Generator, prompt: list[int], length: int, finish: Finish = "stop"
) -> TurnRecord:
    """A turn of random tokens, whose log-probabilities `note_logprobs` adds."""
    sampled = [int(token) for token in rng.integers(2, VOCAB, length)]
    return TurnRecord("", "", finish, prompt_ids=prompt, sampled_ids=sampled)


def note_logprobs(model: torch.nn.Module, trees: Sequence[Trajectory]) -> None:
    """Give all turns the model's log-probabilities of their tokens, from one pass."""
    frames = [frame for tree in trees for frame in tree.frames.values()]
    texts = [[i for turn in f.turns for i in turn.prompt_ids + turn.sampled_ids] for f in frames]
    # Padding on the right is seen by no token before it.
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    with torch.no_grad():
        logps = torch.log_softmax(model(input_ids=ids).logits[:, :-1].float(), -1)
        rows = logps.gather(2, ids[:, 1:, None])[:, :, 0].tolist()
    for frame, row in zip(frames, rows, strict=True):
        at = -1  # the column before a token predicts it
        for turn in frame.turns:
            at += len(turn.prompt_ids)
            turn.logprobs = row[at : at + len(turn.sampled_ids)]
            at += len(turn.sampled_ids)
