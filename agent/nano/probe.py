"""The binding probe: share of conversations in which the model writes the right names.

The probe gives the code, and the model writes the names. It writes a keyword, reads it back, and
must then filter by the other name. Teacher-forced loss cannot detect a wrong binding. The probe
does not depend on the model's preferred strategy, and its names never occur in training.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import torch

from agent.nano import strategies
from agent.nano.demonstrations import Conversation, child_conversation, root_conversation
from agent.nano.drills import names_pair
from agent.nano.tokenizer import ASSISTANT, render
from env.problems import names
from env.problems.synthetic import QUESTIONS

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

_PAPERS = 8
_NAME_TOKENS = 2


@dataclass(frozen=True)
class ProbeResult:
    """Shares of conversations in which every name is right."""

    root: float
    child: float


def probe(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    pairs: int,
    temperature: float,
    seed: int,
) -> ProbeResult:
    """Probe root and child conversations on `pairs` pairs of unseen names.

    Args:
        model: model in either mode, which is restored.
        tokenizer: its tokenizer.
        pairs: number of conversations of each kind.
        temperature: 0 is greedy.
        seed: seed of names and sampling.
    """
    rng = Random(f"probe/{seed}")
    drawn = [names_pair(rng, names.RESERVED) for _ in range(pairs)]
    generator = torch.Generator().manual_seed(seed)
    training = model.training
    model.eval()
    try:
        fill = partial(_fill, model, tokenizer, temperature, generator)
        roots = fill([_root_pieces(rng, *p) for p in drawn])
        children = fill([_pieces(child_conversation(strategies.BEST_CHILD, p), *p) for p in drawn])
    finally:
        model.train(training)
    return ProbeResult(
        root=sum(_root_right(p, w) for p, w in zip(drawn, roots, strict=True)) / pairs,
        child=sum(_child_right(p, w) for p, w in zip(drawn, children, strict=True)) / pairs,
    )


def _root_pieces(rng: Random, x: str, y: str) -> list[str]:
    question = rng.choice(QUESTIONS).format(x=x, y=y)
    hits = rng.randint(1, _PAPERS)
    talk = root_conversation(strategies.BEST_ROOT, question, _PAPERS, hits, hint=False)
    return _pieces(talk, x, y)


def _pieces(conversation: Conversation, x: str, y: str) -> list[str]:
    """Text of a conversation, cut at each name that the model writes."""
    read, written = render(conversation).split(ASSISTANT, 1)
    first, *rest = re.split(f"{x}|{y}", written)
    return [read + ASSISTANT + first, *rest[:-1]]


def _root_right(pair: tuple[str, str], written: Sequence[str]) -> bool:
    """Whether keyword and filter are the two names, and the prompt has one name or both in order.

    If the prompt starts with the question's first name, " on " and the second name follow.
    """
    keyword, other, first, second = written
    bound = {keyword, other} == set(pair)
    return bound and (first == pair[1] or (first, second) == pair)


def _child_right(pair: tuple[str, str], written: Sequence[str]) -> bool:
    return set(written) == set(pair)


@torch.inference_mode()
def _fill(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    temperature: float,
    generator: torch.Generator,
    pieces: Sequence[Sequence[str]],
) -> list[list[str]]:
    """Names that the model writes after each piece, for each conversation."""
    ids: list[list[int]] = [[] for _ in pieces]
    written: list[list[str]] = [[] for _ in pieces]
    for number in range(len(pieces[0])):
        for row, parts in zip(ids, pieces, strict=True):
            row += tokenizer.encode(parts[number], add_special_tokens=False)
        for _ in range(_NAME_TOKENS):
            for row, token in zip(ids, _next(model, ids, temperature, generator), strict=True):
                row.append(token)
        for row, names_written in zip(ids, written, strict=True):
            names_written.append(str(tokenizer.decode(row[-_NAME_TOKENS:])))
    return written


def _next(
    model: LlamaForCausalLM,
    ids: Sequence[Sequence[int]],
    temperature: float,
    generator: torch.Generator,
) -> list[int]:
    """Next token of each sequence."""
    longest = max(len(row) for row in ids)
    batch = torch.tensor([[*row, *[0] * (longest - len(row))] for row in ids])  # [B, T]
    last = torch.tensor([len(row) - 1 for row in ids])
    # Padding is on the right, where causal attention does not see it.
    hidden = model.model(input_ids=batch).last_hidden_state  # [B, T, hidden]
    logits = model.lm_head(hidden[torch.arange(len(ids)), last])  # [B, V]
    if temperature == 0:
        return logits.argmax(-1).tolist()
    shares = torch.softmax(logits / temperature, -1)
    return torch.multinomial(shares, 1, generator=generator)[:, 0].tolist()
