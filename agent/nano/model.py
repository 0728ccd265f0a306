"""The nano model: a small Llama whose heads are wired to copy names and to follow a list of them.

Within minutes of training, a fresh transformer cannot copy an unseen name. So the initial weights
contain circuits for it, and embeddings hold a lexicon; training sharpens them and learns everything
else. The architecture is unchanged, so the saved folder loads as any Llama.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaAttention

from agent.nano.sizes import NanoModelSettings
from agent.nano.tokenizer import SYSTEM

_TOKEN_STD = 0.11
"""Deviation of a token's embedding, which gives its half of the stream a norm of about 1."""
_FLAG = 0.3
"""Size of a class flag in an embedding."""
_FLAGS = 2
"""Dimensions of class flags, at the end of the token's half."""
_MATCH = 2.2
"""Strength of the comparison of two tokens in a wired head."""
_REST = 3.0
"""Score of the conversation's first token, which a head without a match attends to."""
_ANSWER = 0.5
"""Share of its answer's embedding in a listed name's."""
_NEAR = 2.5
"""Strength of a look at the nearest listed name."""
_NEAREST_TURN, _NEAR_TURN = 0.01, 0.2
"""Radians per token, between which a head prefers the nearest of some twenty names."""
_LISTED = 7.0
"""Strength of the preference for listed names."""
_PAGE = 0.2
"""Size of the output of a head that copies the next name of a list."""
_SHARPNESS = 2.5
"""Weight of the last norm. From 1 it rises too slowly for sure predictions with tied embeddings."""
_FAST_TURN = 0.03
"""Radians per token; pairs of dimensions that rotate faster depend on distance."""


def build_model(
    settings: NanoModelSettings,
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    lexicon: Mapping[str, str],
) -> LlamaForCausalLM:
    """An untrained, wired model for this tokenizer.

    Args:
        settings: sizes.
        tokenizer: tokenizer in which each name of `lexicon` is one token.
        seed: seed of the weights.
        lexicon: the answer that follows each name, which is wired into its embedding; "" for
            names without one.
    """
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
        _Wiring(model, settings, tokenizer, lexicon).lay()
        model.model.norm.weight.fill_(_SHARPNESS)
    return model


class _Wiring:
    """The circuits, layer by layer.

    The first half of the stream has the token and its class flags. Layer 0 copies those of the
    token before it to the second half. Class flags: start of a conversation, name of the lexicon.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        settings: NanoModelSettings,
        tokenizer: PreTrainedTokenizerFast,
        lexicon: Mapping[str, str],
    ) -> None:
        self.layers = [layer.self_attn for layer in model.model.layers]
        self.embedding = model.model.embed_tokens.weight  # [V, hidden]
        self.tokenizer = tokenizer
        self.lexicon = lexicon
        self.heads, self.half = settings.heads, settings.hidden // 2
        self.size = settings.hidden // settings.heads
        self.plain = self.half - _FLAGS
        pairs = self.size // 2
        self.turns = settings.rope_theta ** (-torch.arange(pairs) / pairs)  # radians per token
        slow = [i for i in range(pairs) if self.turns[i] < _FAST_TURN]
        self.stable = slow + [i + pairs for i in slow]
        """Dimensions of a head that are independent of distance."""
        self.start, self.listed = range(self.plain, self.half)

    def lay(self) -> None:
        """Write every circuit into the weights."""
        self._embed()
        self._look_back(self.layers[0])
        self._induce(self.layers[1])
        self._look_up(self.layers[1])
        for attention in self.layers[2:]:
            self._turn_page(attention)

    def _embed(self) -> None:
        """Write random tokens and their class flags into the first half."""
        self.embedding.normal_(0.0, 0.01)
        self.embedding[:, : self.plain].normal_(0.0, _TOKEN_STD)
        vocabulary = self.tokenizer.get_vocab()
        self.embedding[vocabulary[SYSTEM], self.start] = _FLAG
        for name, answer in self.lexicon.items():
            row = self.embedding[vocabulary[name]]
            row[self.listed] = _FLAG
            if answer:
                token = self.tokenizer.encode(answer, add_special_tokens=False)[0]
                row[: self.plain] += _ANSWER * self.embedding[token, : self.plain]

    def _look_back(self, attention: LlamaAttention) -> None:
        """Make two heads attend to the previous position and copy its token to the second half."""
        previous = min(2, self.heads)
        share = self.half // previous
        pairs = self.size // 2
        for head in range(previous):
            rows = slice(head * self.size, (head + 1) * self.size)
            # Equal biases, the key's rotated by one position, so the score peaks at distance 1.
            for linear, distance in ((attention.q_proj, 0.0), (attention.k_proj, 1.0)):
                length = torch.zeros(pairs)
                length[:4] = torch.tensor([9.0, 5.5, 4.5, 3.2])
                angle = self.turns * distance
                linear.bias[rows] = torch.cat([length * angle.cos(), length * angle.sin()])
                linear.weight[rows] *= 0.1
            source, width = head * share, min(self.size, share)
            _link(attention, rows.start, width, source, self.half + source, _TOKEN_STD)

    def _induce(self, attention: LlamaAttention) -> None:
        """Make half of the heads copy the token after an earlier occurrence of the current one."""
        heads = self.heads // 2
        step = self.plain // heads
        for head in range(heads):
            first, start = head * self.size, head * step
            for n, dimension in enumerate(self.stable):
                source = (start + n) % self.plain
                _match(attention, first + dimension, [source], [self.half + source], _MATCH)
            self._rest(attention, first, _REST)
            _link(attention, first, min(self.size, step), start, start, _TOKEN_STD)

    def _look_up(self, attention: LlamaAttention) -> None:
        """Make half of the heads copy to each listed name the listed name before it.

        They attend to the token after that name, whose second half holds the name. So a name does
        not find itself.
        """
        heads = range(self.heads // 2, self.heads)
        step = self.plain // len(heads)
        near = [i for i in range(self.size // 2) if _NEAREST_TURN < self.turns[i] < _NEAR_TURN]
        for number, head in enumerate(heads):
            first, start = head * self.size, number * step
            for row in range(first, first + self.size):
                _match(attention, row, [], [], 0.0)
            for i in near:  # the cosine of a slow turn falls with distance
                _match(attention, first + i, [self.listed], [self.half + self.listed], _NEAR)
            self._rest(attention, first, _REST)
            width = min(self.size, step)
            _link(attention, first, width, self.half + start, self.half + start, _TOKEN_STD)
            # The first token holds itself in its second half; its value is set to zero.
            held = self.embedding[self.tokenizer.get_vocab()[SYSTEM]][start : start + width] / _FLAG
            attention.v_proj.weight[first : first + width, self.half + self.start] = -held

    def _turn_page(self, attention: LlamaAttention) -> None:
        """Make all heads copy the name before which the name before this token is listed."""
        step = self.plain // self.heads
        for head in range(self.heads):
            first, start = head * self.size, head * step
            *rows, flag, _ = self.stable
            for n, dimension in enumerate(rows):
                source = self.half + (start + n) % self.plain
                _match(attention, first + dimension, [source], [source], _MATCH)
            _match(attention, first + flag, [], [self.listed], _LISTED)
            attention.q_proj.bias[first + flag] = _LISTED
            self._rest(attention, first, _REST)
            _link(attention, first, min(self.size, step), start, start, _PAGE)

    def _rest(self, attention: LlamaAttention, first: int, score: float) -> None:
        """Make the head from row `first` on attend to the first token if nothing matches."""
        row = first + self.stable[-1]
        for linear in (attention.q_proj, attention.k_proj):
            linear.weight[row] = 0.0
        attention.q_proj.bias[row] = score**0.5
        attention.k_proj.weight[row, self.start] = score**0.5


def _match(
    attention: LlamaAttention, row: int, query: list[int], key: list[int], strength: float
) -> None:
    """Make a dimension of a head (a row) compare these sources of query and key."""
    for linear, sources in ((attention.q_proj, query), (attention.k_proj, key)):
        linear.weight[row] = 0.0
        linear.weight[row, sources] = strength


def _link(
    attention: LlamaAttention, row: int, width: int, source: int, target: int, gain: float
) -> None:
    """Make the head from this row on copy dimensions [source, source + width) to `target`."""
    for n in range(width):
        attention.v_proj.weight[row + n] = 0.0
        attention.o_proj.weight[:, row + n] = 0.0
        attention.v_proj.weight[row + n, source + n] = 1.0
        attention.o_proj.weight[target + n, row + n] = gain
