"""Conversations as token ids with a loss weight for each token, and batches of them.

Neighbours: `plans.py` and `lessons.py` make the conversations, `teaching.py` trains on the
batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from agent.decoding.prefix_tree import by_length
from agent.nano.tokenizer import ASSISTANT, END, Conversation, render, syllable_ids


@dataclass(frozen=True)
class Example:
    """A sequence; `weights[t]` is the loss weight of predicting `ids[t]`. Both have shape [T]."""

    ids: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class ExampleBatch:
    """Sequences padded on the right."""

    ids: torch.Tensor
    """[B, T], int64."""
    weights: torch.Tensor
    """[B, T], float32; 0 on padding and on the first token."""


class Encoder:
    """Encoder of conversations with loss weights.

    Args:
        tokenizer: the nano tokenizer.
        observation: weight of tokens that the policy reads.
        written: weight of tokens that the policy writes.
        name: weight of names that the policy writes.
        words: other tokens with the weight of names.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        observation: float,
        written: float,
        name: float,
        words: Sequence[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._observation, self._written, self._name = observation, written, name
        first, second = syllable_ids(tokenizer)
        self._is_name = np.zeros(len(tokenizer), dtype=bool)
        self._is_name[[*first, *second, *words]] = True
        self._assistant = tokenizer.get_vocab()[ASSISTANT]
        self._end = tokenizer.get_vocab()[END]

    def encode(
        self, conversations: Sequence[Conversation], slips: Sequence[int | None] | None = None
    ) -> list[Example]:
        """Encode each conversation as an example.

        Args:
            conversations: messages, read and written.
            slips: index of the message without loss in each conversation, or None.
        """
        texts = [render(messages) for messages in conversations]
        encoded = self._tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
        places = slips or [None] * len(encoded)
        return [self._weigh(np.asarray(e.ids), at) for e, at in zip(encoded, places, strict=True)]

    def _weigh(self, ids: np.ndarray, slip: int | None = None) -> Example:
        # The policy's tokens are those after <|assistant|>, up to and including <|end|>.
        ends = np.cumsum(ids == self._end) - (ids == self._end)  # <|end|>s before each token
        opened = np.cumsum(ids == self._assistant) - (ids == self._assistant)
        in_message = np.zeros(len(ids), dtype=bool)
        for number in range(int(ends.max()) + 1):
            here = ends == number
            in_message[here] = opened[here] > opened[here][0]
        weights = np.where(in_message, self._written, self._observation)
        weights = np.where(in_message & self._is_name[ids], self._name, weights)
        weights[ends == slip] = 0.0
        weights[0] = 0.0
        return Example(ids, weights.astype(np.float32))


def noisy(example: Example, share: float, rng: Random) -> Example:
    """Replace a share of the written tokens by other written tokens.

    Replaced tokens have no loss; the tokens after them keep theirs.
    """
    written = np.flatnonzero(example.weights >= 1.0)
    hit = [at for at in written if rng.random() < share]
    if not hit:
        return example
    ids, weights = example.ids.copy(), example.weights.copy()
    for at in hit:
        ids[at] = example.ids[rng.choice(written)]
        weights[at] = 0.0
    return Example(ids, weights)


def batches(examples: Sequence[Example], batch_tokens: int, rng: Random) -> Iterator[ExampleBatch]:
    """Yield all examples once, in batches of similar length and `batch_tokens` padded tokens."""
    ordered = sorted(examples, key=lambda example: (len(example.ids), rng.random()))
    groups = list(by_length([example.ids for example in ordered], batch_tokens))
    rng.shuffle(groups)
    for group in groups:
        yield collate([ordered[index] for index in group])


def collate(group: Sequence[Example]) -> ExampleBatch:
    """Pad examples to the longest. Causal attention needs no mask for padding on the right."""
    longest = max(len(example.ids) for example in group)
    ids = torch.zeros(len(group), longest, dtype=torch.long)
    weights = torch.zeros(len(group), longest)
    for row, example in enumerate(group):
        length = len(example.ids)
        ids[row, :length] = torch.from_numpy(example.ids)
        weights[row, :length] = torch.from_numpy(example.weights)
    return ExampleBatch(ids, weights)
