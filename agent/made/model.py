"""The made model: a small Qwen3 whose heads are wired to copy words and to find lines.

Within minutes, a fresh transformer learns neither. So the initial weights contain circuits for it,
as in nano, and embeddings hold the lexicon. Queries and keys of Qwen3 are normalised: a head's
score is the cosine of the two, times the weights of their norms. So a wired head needs a place that
it attends to when nothing matches, and the norms decide how sharply it chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from agent.made.tokenizer import START

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

HIDDEN, LAYERS, HEADS, MLP = 128, 3, 4, 256
CONTEXT = 768
_THETA = 1e6
"""Large, so that most of a head ignores distance."""
_HALF = HIDDEN // 2
_SIZE = HIDDEN // HEADS
_PLAIN = 60
"""Dimensions of a token; class flags follow: end of line, listed name, field, start."""
_NEWLINE, _LISTED, _FIELD, _FIRST = range(_PLAIN, _HALF)
_FITS = HIDDEN - 2
"""Dimension that says that a benchmark fits the question."""
_RESERVED = [_NEWLINE, _LISTED, _FIELD, _FIRST, _FITS]
"""Dimensions that only the wiring writes."""
_STD = 0.11
"""Deviation of a token's embedding, which gives it a norm of about 1."""
_FLAG = 0.3
"""Size of a class flag."""
_ANSWER = 1.0
"""Share of its field's embedding in a listed name's."""
_SHARPNESS = 2.5
"""Weight of the last norm; from 1 it rises too slowly for sure predictions."""
_FIT = 6.0
"""Strength of the flag of a fitting benchmark in a key."""
_BACK, _SHARP = 2.1, 1.7
"""Weights of the norms of queries and keys: of heads that look back, and of the others."""


def build_model(
    tokenizer: PreTrainedTokenizerFast, seed: int, lexicon: Mapping[str, str]
) -> Qwen3ForCausalLM:
    """An untrained, wired model for this tokenizer, in float32.

    Args:
        tokenizer: tokenizer in which each name of `lexicon` and each field is one token.
        seed: seed of the weights.
        lexicon: field of each name, which is wired into its embedding; "" for names without one.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=MLP,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=_SIZE,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": _THETA},
        tie_word_embeddings=True,
        attention_bias=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    with torch.no_grad():
        _Wiring(model, tokenizer, lexicon).lay()
        model.model.norm.weight.fill_(_SHARPNESS)
    return model


class _Wiring:
    """The circuits, layer by layer.

    The first half of the stream has the token and its class flags. Layer 0 copies the token before
    it to the second half. Layer 1 copies what followed an earlier occurrence, flags the benchmarks
    of the question's field, and fetches the number of the line. Layer 2 copies the number of a line
    with a flag.
    """

    def __init__(
        self,
        model: Qwen3ForCausalLM,
        tokenizer: PreTrainedTokenizerFast,
        lexicon: Mapping[str, str],
    ) -> None:
        self.model = model
        self.layers = [layer.self_attn for layer in model.model.layers]
        self.embedding = model.model.embed_tokens.weight  # [V, HIDDEN]
        self.tokenizer, self.lexicon = tokenizer, lexicon
        pairs = _SIZE // 2
        self.turns = _THETA ** (-torch.arange(pairs) / pairs)  # radians per token
        slow = [i for i in range(pairs) if self.turns[i] < 0.03]
        self.stable = slow + [i + pairs for i in slow]
        """Dimensions of a head that are independent of distance."""
        self.near = [i for i in range(pairs) if 0.01 < self.turns[i] < 0.2]
        """Dimensions whose score falls with distance."""

    def lay(self) -> None:
        """Write every circuit into the weights."""
        self._embed()
        for attention, weight in zip(self.layers, (_BACK, _SHARP, _SHARP), strict=True):
            attention.q_norm.weight.fill_(weight)
            attention.k_norm.weight.fill_(weight)
        for layer in self.model.model.layers:  # nothing else writes the flags
            layer.self_attn.o_proj.weight[_RESERVED] = 0.0
            layer.mlp.down_proj.weight[_RESERVED] = 0.0
        first, second, third = self.layers
        for head in range(2):
            self._look_back(first, head, 32 * head, 32 if head == 0 else 30)
        for head in range(2):
            self._induce(second, head, 30 * head)
        self._match_field(second, 2)
        self._find_line(second, 3)
        self._report(third, 0)

    def _embed(self) -> None:
        """Write random tokens and their class flags into the first half."""
        self.embedding.normal_(0.0, 0.01)
        self.embedding[:, :_PLAIN].normal_(0.0, _STD)
        vocabulary = self.tokenizer.get_vocab()
        self.embedding[vocabulary[START], _FIRST] = _FLAG
        for token, number in vocabulary.items():
            if token.endswith("Ċ"):  # a line break, as byte-level BPE writes it
                self.embedding[number, _NEWLINE] = _FLAG
        for field in sorted(set(self.lexicon.values()) - {""}):
            self.embedding[vocabulary[field], _FIELD] = _FLAG
        for name, field in self.lexicon.items():
            row = self.embedding[vocabulary[name]]
            row[_LISTED] = _FLAG
            if field:
                row[:_PLAIN] += _ANSWER * self.embedding[vocabulary[field], :_PLAIN]

    def _look_back(self, attention: Qwen3Attention, head: int, source: int, width: int) -> None:
        """Attend to the previous position, and copy a part of its token to the second half."""
        rows = _clear(attention, head, keep=0.1)
        # Equal biases, the key's rotated by one position, so the score peaks at distance 1.
        length = torch.zeros(_SIZE // 2)
        length[:4] = torch.tensor([9.0, 5.5, 4.5, 3.2])
        for linear, distance in ((attention.q_proj, 0.0), (attention.k_proj, 1.0)):
            angle = self.turns * distance
            linear.bias[rows] = torch.cat([length * angle.cos(), length * angle.sin()])
        _copy(attention, head, width, source, _HALF + source, _STD)

    def _induce(self, attention: Qwen3Attention, head: int, start: int) -> None:
        """Copy a part of the token after an earlier occurrence of the current one."""
        rows = _clear(attention, head)
        *same, rest = self.stable
        for n, dimension in enumerate(same):
            source = (start + n) % _PLAIN
            attention.q_proj.weight[rows.start + dimension, source] = 1.0
            attention.k_proj.weight[rows.start + dimension, _HALF + source] = 1.0
        _rest(attention, rows.start + rest, 2.5)
        _copy(attention, head, 30, start, start, _STD)

    def _match_field(self, attention: Qwen3Attention, head: int) -> None:
        """Flag a benchmark whose field is that of the question."""
        rows = _clear(attention, head)
        *same, flag, rest = self.stable
        for n, dimension in enumerate(same):
            attention.q_proj.weight[rows.start + dimension, n] = 1.0
            attention.k_proj.weight[rows.start + dimension, n] = 1.0
        # A key that is not a field points elsewhere.
        attention.k_proj.weight[rows.start + flag, _FIELD] = -3.0
        attention.k_proj.bias[rows.start + flag] = 9.0
        _rest(attention, rows.start + rest, 2.5)
        attention.v_proj.weight[rows] = 0.0
        attention.o_proj.weight[:, rows] = 0.0
        attention.v_proj.weight[rows.start, _FIELD] = 1.0
        attention.o_proj.weight[_FITS, rows.start] = _FLAG

    def _find_line(self, attention: Qwen3Attention, head: int) -> None:
        """Copy a part of the latest token that begins a line to the second half."""
        rows = _clear(attention, head)
        rest = self.stable[-1]
        for i in self.near:
            attention.q_proj.bias[rows.start + i] = 1.0
            attention.k_proj.weight[rows.start + i, _HALF + _NEWLINE] = 3.0
        attention.k_proj.bias[rows.start + rest] = 2.0
        _copy(attention, head, _SIZE, 0, _HALF, _STD)

    def _report(self, attention: Qwen3Attention, head: int) -> None:
        """Copy the number of a line whose benchmark has the flag."""
        rows = _clear(attention, head)
        *_, flag, rest = self.stable
        attention.q_proj.bias[rows.start + flag] = 1.0
        attention.k_proj.weight[rows.start + flag, _FITS] = _FIT
        attention.k_proj.weight[rows.start + flag, _FIELD] = -4.0 * _FIT  # it fits itself
        attention.k_proj.bias[rows.start + rest] = 5.0
        _rest(attention, rows.start + rest, 0.5)
        _copy(attention, head, _SIZE, _HALF, 0, 2 * _STD)


def _rest(attention: Qwen3Attention, row: int, share: float) -> None:
    """Make the head of this row attend to the first token if nothing matches."""
    attention.q_proj.bias[row] = share
    attention.k_proj.weight[row, _FIRST] = 5.0


def _clear(attention: Qwen3Attention, head: int, keep: float = 0.0) -> slice:
    """Rows of a head, with the share `keep` of its random queries and keys."""
    rows = slice(head * _SIZE, (head + 1) * _SIZE)
    for linear in (attention.q_proj, attention.k_proj):
        linear.weight[rows] *= keep
    return rows


def _copy(
    attention: Qwen3Attention, head: int, width: int, source: int, target: int, gain: float
) -> None:
    """Make a head copy dimensions [source, source + width) to `target`."""
    for n in range(width):
        row = head * _SIZE + n
        attention.v_proj.weight[row] = 0.0
        attention.o_proj.weight[:, row] = 0.0
        attention.v_proj.weight[row, source + n] = 1.0
        attention.o_proj.weight[target + n, row] = gain
