"""Keys and values of rows that are read together, and the attention over them.

A token's column in the buffer is its position in the conversation. So a row needs neither padding
nor gaps, and a token that was read in vain is overwritten by the next one at its position. A pass
reads any number of tokens of each row, in one line: its linear layers see only tokens that count.

Attention works on the buffer where it lies, without a copy of the keys for each head that shares
them, which would cost more than all else in a step of a small model on a CPU.

A step of one token is thousands of small kernels, which Python launches more slowly than a card
runs them. There, it is a CUDA graph (`StaticStep`), made once for all batches of its size.

It supports decoders whose cache has plain growing layers of one shape: Llama, Qwen 2.5 and 3,
Mistral without a window. `CacheShape.of` refuses others. Neighbour: `sampling.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, DynamicCache
from transformers.cache_utils import Cache, DynamicLayer

from agent.errors import PolicyError

logger = logging.getLogger(__name__)

_ATTENTION = "rows"
"""Name of this module's attention among those of transformers."""
_WIDE = 32
"""Tokens of a row that are worth a copy of its columns."""
_GRAPHS = "cuda"
"""Type of the devices that have graphs."""
_BLOCK = 256
"""Columns of a static buffer are a multiple of it, so that batches share graphs."""
_OFF = 0.02
"""Most difference of a graph's logits, as a share of the largest; other kernels round otherwise."""
LEAST_ROWS = 8
"""Rows down to which a static buffer shrinks: a graph of fewer costs a card as much. From there on,
its rows are a multiple of it."""

# For each new shape, cuDNN makes a plan, and the columns of a step grow with each.
torch.backends.cuda.enable_cudnn_sdp(False)


@dataclass(frozen=True)
class CacheShape:
    """Shape, type and device of one token's keys and values in a model's cache."""

    layers: int
    heads: int
    dim: int
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(model: Any) -> CacheShape:
        """Shape of the cache after a forward pass of one token.

        Raises:
            PolicyError: the cache has sliding, recurrent or unequal layers, or the model's
                attention can't be replaced.
        """
        device = model.get_input_embeddings().weight.device
        cache = DynamicCache(config=model.config)
        with torch.inference_mode():
            model(
                input_ids=torch.zeros(1, 1, dtype=torch.long, device=device),
                past_key_values=cache,
                use_cache=True,
            )
        layers = [
            (layer.keys, layer.values)
            for layer in cache.layers
            if type(layer) is DynamicLayer
            and isinstance(layer.keys, Tensor)
            and isinstance(layer.values, Tensor)
        ]
        kinds = {(part.shape, part.dtype, part.device) for pair in layers for part in pair}
        if len(layers) != len(cache.layers) or len(kinds) != 1:
            raise _unplayable(cache, type(model).__name__)
        if not model._can_set_attn_implementation():
            raise PolicyError(
                f"{type(model).__name__}: its attention is not called through transformers' "
                "AttentionInterface. Serve the model behind an OpenAI-compatible endpoint."
            )
        ((size, dtype, where),) = kinds  # size: [1, heads, 1, dim]
        return CacheShape(len(layers), size[1], size[3], dtype, where)

    def buffer(self, rows: int, columns: int) -> Tensor:
        """Keys and values of no token yet: [layers, 2, rows, heads, columns, dim]."""
        size = (self.layers, 2, rows, self.heads, columns, self.dim)
        return torch.zeros(size, dtype=self.dtype, device=self.device)


def require_playable(config: Any, name: str) -> None:
    """Refuse a model by its transformers config, before its weights are there.

    Raises:
        PolicyError: the cache has sliding or recurrent layers; `CacheShape.of` checks the rest.
    """
    cache = DynamicCache(config=config)
    if any(type(layer) is not DynamicLayer for layer in cache.layers):
        raise _unplayable(cache, name)


def _unplayable(cache: Cache, name: str) -> PolicyError:
    kinds = sorted({type(layer).__name__ for layer in cache.layers})
    return PolicyError(
        f"{name}: the cache ({', '.join(kinds)}) does not consist of equal full-attention layers "
        "on one device. Serve the model behind an OpenAI-compatible endpoint."
    )


@dataclass(frozen=True)
class _Layout:
    """Where the tokens of a pass belong. N: tokens, R: rows of the pass, W: most tokens of one."""

    rows_N: Tensor
    """Row of the buffer."""
    columns_N: Tensor
    """Column of the buffer, which is the position."""
    slots_N: Tensor | None
    """Place in [R, W], flat; None where every row has W tokens."""
    rows_R: Tensor | None
    """Rows of the pass; None: all of the buffer."""
    width: int
    """W."""
    columns: int
    """Columns of the buffer that the pass looks at."""


class _BufferLayer(DynamicLayer):
    """One layer of the buffer, as the model sees it. It writes new columns in place."""

    def __init__(self, keys: Tensor, values: Tensor, layout: _Layout) -> None:
        super().__init__()
        self._buffers, self._layout = (keys, values), layout
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        layout = self._layout
        seen = []
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[layout.rows_N, :, layout.columns_N] = states[0].transpose(0, 1)
            part = buffer[:, :, : layout.columns]
            seen.append(part if layout.rows_R is None else part.index_select(0, layout.rows_R))
        self.keys, self.values = seen
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self._layout.columns


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    *,
    rows: _Layout,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of N tokens to the columns of their rows, as transformers calls it.

    Args:
        module: the layer's attention.
        query: [1, heads, N, dim].
        key: [R, heads of keys, columns, dim].
        value: as `key`.
        attention_mask: [R, 1, heads of a group x W, columns], additive.
        scaling: of the scores.
        rows: where the tokens belong.
        kwargs: without effect in models that `CacheShape.of` admits.

    Returns:
        [1, N, heads, dim], and no weights.
    """
    _, heads, _, dim = query.shape
    flat = query[0]
    if rows.slots_N is not None:
        size = key.shape[0] * rows.width
        flat = query.new_zeros(heads, size, dim).index_copy_(1, rows.slots_N, flat)
    output = attend_in_groups(flat, key, value, attention_mask, scaling)
    if rows.slots_N is not None:
        output = output.index_select(0, rows.slots_N)
    return output[None], None


def attend_in_groups(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None
) -> Tensor:
    """Attention of the W queries of each of R rows to the columns of the row.

    Heads that share keys become further queries, because a copy of the keys for each costs more.

    Args:
        query: [heads, R x W, dim].
        key: [R, heads of keys, columns, dim].
        value: as `key`.
        mask: [R, 1, heads of a group x W, columns], additive.
        scaling: of the scores.

    Returns:
        [R x W, heads, dim].
    """
    heads, size, dim = query.shape
    count, groups = key.shape[:2]
    asked = query.view(groups, heads // groups, count, -1, dim).permute(2, 0, 1, 3, 4)
    asked = asked.reshape(count, groups, -1, dim)
    trained = asked.requires_grad and asked.dtype == torch.bfloat16
    attend = _products if trained else torch.nn.functional.scaled_dot_product_attention
    output = attend(asked, key, value, mask, scale=scaling)
    output = output.view(count, groups, heads // groups, -1, dim).permute(0, 3, 1, 2, 4)
    return output.reshape(size, heads, dim)


def _products(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *, scale: float | None
) -> Tensor:
    """Attention by two products; in bfloat16, PyTorch's kernel has a slow backward pass on CPUs."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return (query * scale @ key.transpose(-1, -2) + mask).softmax(-1) @ value


AttentionInterface.register(_ATTENTION, _attend)


@contextmanager
def _attention(model: Any) -> Iterator[None]:
    """Let the model use this module's attention, for the duration of the block."""
    config = model.config
    before = config._attn_implementation
    config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before


def read(
    model: Any, buffer: Tensor, tokens: Sequence[tuple[int, int, Sequence[int]]], *, logits: bool
) -> Tensor:
    """Read tokens into the buffer, in one forward pass.

    Args:
        model: the model.
        buffer: [layers, 2, rows, heads, columns, dim]; the pass fills the tokens' columns.
        tokens: (row, first column, tokens) of each row that reads, in ascending order of the rows.
            The columns before the first one are filled.
        logits: whether the logits are wanted.

    Returns:
        Logits of the tokens, one row after the other: [N, vocabulary]; else those of the last.
    """
    device = buffer.device
    counts = [len(part) for _, _, part in tokens]
    width = max(counts)
    rows = [row for row, _, _ in tokens]
    # A few queries of rows that read nothing cost less than a copy of the others' columns.
    whole = len(rows) == buffer.shape[2] or (width < _WIDE and 2 * len(rows) > buffer.shape[2])
    places = rows if whole else range(len(rows))
    starts = dict.fromkeys(range(buffer.shape[2]), 0) if whole else {}
    starts |= {place: start for place, (_, start, _) in zip(places, tokens, strict=True)}
    columns = [range(start, start + len(part)) for _, start, part in tokens]

    def of(values: Any) -> Tensor:
        return torch.tensor(list(values), dtype=torch.long, device=device)

    columns_N = of(column for part in columns for column in part)
    slots = (place * width + at for place, n in zip(places, counts, strict=True) for at in range(n))
    layout = _Layout(
        rows_N=of(row for row, _, part in tokens for _ in part),
        columns_N=columns_N,
        slots_N=None if min(counts) == width and len(starts) == len(rows) else of(slots),
        rows_R=None if whole else of(rows),
        width=width,
        columns=max(part.stop for part in columns),
    )
    ids = of(token for _, _, part in tokens for token in part)
    return _forward(model, buffer, ids, of(starts.values()), layout, 0 if logits else 1)


def _forward(
    model: Any, buffer: Tensor, ids_N: Tensor, starts_R: Tensor, layout: _Layout, kept: int
) -> Tensor:
    """Logits of the last `kept` tokens, or of all: [N, vocabulary]."""
    with _attention(model):
        output = model(
            input_ids=ids_N[None],
            attention_mask=_mask(model.config, buffer, starts_R, layout),
            position_ids=layout.columns_N[None],
            past_key_values=Cache(layers=[_BufferLayer(kv[0], kv[1], layout) for kv in buffer]),
            use_cache=True,
            logits_to_keep=kept,
            rows=layout,
        )
    return torch.as_tensor(output.logits)[0]


class StaticSteps:
    """Steps of one token by the size of their buffers, which are parts of one memory.

    So only one batch may use them at a time. The model's weights stay where they are.
    """

    def __init__(self, model: Any, shape: CacheShape) -> None:
        self._model, self._shape = model, shape
        self._pool: list[Any] = [None]
        """Memory in which the graphs compute, one at a time; the first one makes it."""
        self._memory = shape.buffer(0, 0)
        self._steps: dict[tuple[int, int], StaticStep] = {}

    @classmethod
    @torch.inference_mode()
    def on(cls, model: Any, shape: CacheShape) -> StaticSteps | None:
        """Steps of a model on a card; None elsewhere, or if a graph says not what a step says."""
        if shape.device.type != _GRAPHS:
            return None
        steps = cls(model, shape)
        step = steps.of(LEAST_ROWS, 1)
        for column in range(3):
            logits = step.read([(row, column, [row + column]) for row in range(LEAST_ROWS)])
        off = (logits - step.eager()).abs().max() / logits.abs().max()
        if not (right := bool(off <= _OFF)):  # or they are no numbers
            _warn(f"its logits are off by {off:.2g} of the largest")
        return steps if steps._pool[0] and right else None

    def of(self, rows: int, columns: int) -> StaticStep:
        """The step of a buffer of zeros with at least these rows and columns."""
        rows = 1 << (rows - 1).bit_length() if rows < LEAST_ROWS else rows + -rows % LEAST_ROWS
        columns += -columns % _BLOCK
        layers, two, _, heads, _, dim = self._memory.shape
        if (size := layers * two * rows * heads * columns * dim) > self._memory.numel():
            # Frees what there was. No step refers to this object, or it would free too late.
            self._steps, self._pool, self._memory = {}, [None], self._shape.buffer(0, 0)
            self._memory = self._shape.buffer(rows, columns)
        if (rows, columns) not in self._steps:
            part = self._memory.view(-1)[:size].view(layers, two, rows, heads, columns, dim)
            self._steps[rows, columns] = StaticStep(self._model, part, self._pool)
        self._steps[rows, columns].buffer.zero_()  # a NaN would stay one behind a mask
        return self._steps[rows, columns]


class StaticStep:
    """Passes of one token a row, whose tensors stay where they are.

    All rows of the buffer read and look at all of its columns. Rows without a token overwrite their
    first column. On a card, the first pass loads the kernels, and the others replay a graph of
    them; elsewhere, they do the same without one.
    """

    def __init__(self, model: Any, buffer: Tensor, pool: list[Any]) -> None:
        self._model, self.buffer, self._pool = model, buffer, pool
        rows = torch.arange(buffer.shape[2], device=buffer.device)
        self._inputs = rows.new_zeros(2, len(rows))
        """Token and column of each row."""
        self._layout = _Layout(rows, self._inputs[1], None, None, 1, buffer.shape[-2])
        self._graph: Any = None
        self._passes = 0
        self._logits = torch.empty(0)

    def read(self, tokens: Sequence[tuple[int, int, Sequence[int]]]) -> Tensor:
        """Logits of one token of each of some rows, as `read` returns them."""
        rows, columns, parts = zip(*tokens, strict=True)
        given = torch.zeros(self._inputs.shape, dtype=torch.long)
        given[:, rows] = torch.tensor([[part[0] for part in parts], columns])
        self._inputs.copy_(given)
        self._passes += 1
        if self._passes == 2 and self.buffer.device.type == _GRAPHS:
            self._capture()
        if self._graph:
            self._graph.replay()
        else:
            self._logits = self.eager()
        return self._logits[list(rows)]

    def eager(self) -> Tensor:
        """Logits of all rows, by a pass without a graph."""
        ids, columns = self._inputs
        return _forward(self._model, self.buffer, ids, columns, self._layout, 0)

    def _capture(self) -> None:
        graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            capture = torch.cuda.graph(graph, self._pool[0], capture_error_mode="thread_local")
            # A capture that fails leaves its stream behind; other threads may use the card.
            with torch.cuda.stream(here), capture:
                self._logits = self.eager()
            self._graph, self._pool[0] = graph, graph.pool()
        except RuntimeError as error:
            _warn(str(error).partition(". ")[0])  # sizes of memory come after it


@cache
def _warn(reason: str) -> None:
    """Say it once, because each step of a training has a policy of its own."""
    logger.warning("decoding is slow, because no CUDA graph of a step can be made: %s", reason)


def _mask(config: Any, buffer: Tensor, starts_R: Tensor, layout: _Layout) -> Tensor:
    """Additive mask: 0 at a token's own column and those before it, the least number elsewhere."""
    groups = config.get_text_config().num_attention_heads // buffer.shape[3]
    last = starts_R[:, None] + torch.arange(layout.width, device=buffer.device)
    columns = torch.arange(layout.columns, device=buffer.device)
    mask = torch.zeros(1, dtype=buffer.dtype, device=buffer.device).masked_fill(
        columns > last[:, None, :, None], torch.finfo(buffer.dtype).min
    )  # [R, 1, W, columns]
    return mask.repeat(1, 1, groups, 1) if layout.width > 1 else mask.expand(-1, -1, groups, -1)
