"""The nano model: a small Llama whose heads are wired to copy names and to tell two apart.

A fresh transformer cannot copy a name it has not seen within minutes of training, and takes far
longer to write *the other one* of two names. The circuits for both are laid down here, at
initialisation; training sharpens them, and everything else is learnt. The architecture is
untouched, so the saved folder loads as any Llama.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from agent.nano.settings import ModelSettings
from agent.nano.tokenizer import SYSTEM, syllable_ids

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.models.llama.modeling_llama import LlamaAttention

_TOKEN_STD = 0.11
"""Deviation of a token's embedding; its half of the stream then has norm about 1."""
_FLAG = 0.3
"""Size of a class flag in an embedding."""
_FLAGS = 5
"""Dimensions kept for class flags, at the end of the token's half."""
_MATCH = 2.2
"""Strength of the comparison of two tokens in a wired head."""
_CLASS_MATCH = 1.5
"""The same for class flags, in `_CLASS_ROWS` dimensions: gentle, so that two names share a head."""
_CLASS_ROWS = 4
_REST = 3.0
"""Pull of the conversation's first token on a head that finds nothing."""
_CLASS_REST = 2.0
"""The same where classes are compared."""
_COPY = 0.1
"""Size of what a head of a later layer writes, or takes away."""
_FAST_TURN = 0.03
"""Radians a token: pairs of dimensions that turn faster depend on distance, slower ones do not."""


def build_model(
    settings: ModelSettings, tokenizer: PreTrainedTokenizerFast, seed: int
) -> LlamaForCausalLM:
    """An untrained, wired model for this tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=settings.mlp,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=settings.context,
        rope_parameters={"rope_type": "default", "rope_theta": settings.rope_theta},
        tie_word_embeddings=True,
        attention_bias=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    with torch.no_grad():
        _Wiring(model, settings, tokenizer).lay()
    return model


class _Wiring:
    """The circuits, layer by layer.

    The first half of the stream holds the token and its class flags, the second half will hold
    those of the token before it. Flags: a name's first syllable; any token that opens a name;
    the one that opens a search keyword; the one that opens a filter; a conversation's start.
    """

    def __init__(
        self, model: LlamaForCausalLM, settings: ModelSettings, tokenizer: PreTrainedTokenizerFast
    ) -> None:
        self.layers = [layer.self_attn for layer in model.model.layers]
        self.embedding = model.model.embed_tokens.weight  # (vocab, hidden)
        self.tokenizer = tokenizer
        self.heads, self.half = settings.heads, settings.hidden // 2
        self.size = settings.hidden // settings.heads
        self.plain = self.half - _FLAGS
        pairs = self.size // 2
        self.turns = settings.rope_theta ** (-torch.arange(pairs) / pairs)  # radians a token
        slow = [i for i in range(pairs) if self.turns[i] < _FAST_TURN]
        self.stable = slow + [i + pairs for i in slow]
        """Dimensions of a head that compare without regard to distance."""
        self.first, self.opens, self.keyword, self.filter, self.start = range(self.plain, self.half)

    def lay(self) -> None:
        """Write every circuit into the weights."""
        self._embed()
        self._look_back(self.layers[0])
        self._induce(self.layers[1])
        for attention in self.layers[2:]:
            self._tell_apart(attention)

    def _embed(self) -> None:
        """Random tokens in the first half, with the flags of their class."""
        self.embedding.normal_(0.0, 0.01)
        self.embedding[:, : self.plain].normal_(0.0, _TOKEN_STD)
        texts = [str(self.tokenizer.decode([i])) for i in range(len(self.tokenizer))]
        members = {
            self.first: syllable_ids(self.tokenizer)[0],
            self.opens: [i for i, text in enumerate(texts) if text.endswith('"')],
            self.keyword: [i for i, text in enumerate(texts) if text == ', "'],
            self.filter: [i for i, text in enumerate(texts) if text == '"'],
            self.start: [self.tokenizer.get_vocab()[SYSTEM]],
        }
        for flag, ids in members.items():
            self.embedding[ids, flag] = _FLAG

    def _look_back(self, attention: LlamaAttention) -> None:
        """Two heads attend to the previous position and write its token to the second half."""
        previous = min(2, self.heads)
        share = self.half // previous
        pairs = self.size // 2
        for head in range(previous):
            rows = slice(head * self.size, (head + 1) * self.size)
            # Equal biases, the key's turned one position on: the score peaks at distance 1.
            for linear, distance in ((attention.q_proj, 0.0), (attention.k_proj, 1.0)):
                length = torch.zeros(pairs)
                length[:4] = torch.tensor([9.0, 5.5, 4.5, 3.2])
                angle = self.turns * distance
                linear.bias[rows] = torch.cat([length * angle.cos(), length * angle.sin()])
                linear.weight[rows] *= 0.1
            source = head * share
            self._link(attention, head, min(self.size, share), source, self.half + source)

    def _induce(self, attention: LlamaAttention) -> None:
        """All heads but one: where the token before equals mine, read the token there."""
        step = self.plain // (self.heads - 1)
        for head in range(self.heads - 1):
            for n, dimension in enumerate(self.stable):
                source = (head * step + n) % self.plain
                self._match(attention, head, dimension, [source], [self.half + source], _MATCH)
            self._rest(attention, head, _REST)
            self._link(attention, head, min(self.size, step), head * step, head * step)

    def _tell_apart(self, attention: LlamaAttention) -> None:
        """Where a name opens, write names read before; where a filter does, not the keyword's.

        The first half of the heads writes what it attends to, the second half takes it away:
        both names of the question, less the one that was searched, leave the other one.
        """
        for head in range(self.heads):
            adds = head < self.heads // 2
            if adds:
                query, key = [self.opens], [self.first]
            else:
                query, key = [self.filter], [self.half + self.keyword]
            for dimension in self.stable[:_CLASS_ROWS]:
                self._match(attention, head, dimension, query, key, _CLASS_MATCH)
                if adds:  # not names that were written after an opening token
                    row = head * self.size + dimension
                    attention.k_proj.weight[row, self.half + self.opens] = -_CLASS_MATCH
            self._rest(attention, head, _CLASS_REST)
            start = head * self.size % self.half
            width = min(self.size, self.plain - start)
            self._link(attention, head, width, start, start, _COPY if adds else -_COPY)

    def _rest(self, attention: LlamaAttention, head: int, score: float) -> None:
        """Let a head that finds nothing look at the conversation's first token."""
        row = head * self.size + self.stable[-1]
        for linear in (attention.q_proj, attention.k_proj):
            linear.weight[row] = 0.0
        attention.q_proj.bias[row] = score**0.5
        attention.k_proj.weight[row, self.start] = score**0.5

    def _match(
        self,
        attention: LlamaAttention,
        head: int,
        dimension: int,
        query: Sequence[int],
        key: Sequence[int],
        strength: float,
    ) -> None:
        """Make one dimension of a head compare these sources of query and key."""
        row = head * self.size + dimension
        for linear, sources in ((attention.q_proj, query), (attention.k_proj, key)):
            linear.weight[row] = 0.0
            linear.weight[row, list(sources)] = strength

    def _link(
        self,
        attention: LlamaAttention,
        head: int,
        width: int,
        source: int,
        target: int,
        gain: float = _TOKEN_STD,
    ) -> None:
        """Make a head write dimensions [source, source + width) of what it sees at `target`."""
        for n in range(width):
            row = head * self.size + n
            attention.v_proj.weight[row] = 0.0
            attention.o_proj.weight[:, row] = 0.0
            attention.v_proj.weight[row, source + n] = 1.0
            attention.o_proj.weight[target + n, row] = gain
