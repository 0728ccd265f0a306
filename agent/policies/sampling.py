"""Batched sampling over growing conversations: one loop over key-value buffers.

A conversation keeps the keys and values of the tokens it has read, so a turn costs only its new
tokens. Rows of different lengths share one buffer. The columns that a row does not use are masked,
and each row has its own positions, so gaps have no effect. Completed rows leave the batch.

It supports decoders whose cache has plain growing layers of one shape: Llama, Qwen 2.5 and 3,
Mistral without a window. `CacheShape.of` refuses others. Neighbour: `hf_policy.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer

from agent.errors import PolicyError

_GROW = 64
"""Columns that a full buffer grows by."""


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
            PolicyError: the cache has sliding, recurrent or unequal layers.
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
        ((size, dtype, where),) = kinds  # size: [1, heads, 1, dim]
        return CacheShape(len(layers), size[1], size[3], dtype, where)


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


@dataclass
class SampledTurn:
    """A turn to sample, and its outcome."""

    place: int
    """Index of the request."""
    tokens: list[int]
    """Tokens that are not in the cache yet, at least one."""
    cached: int
    """Number of tokens in `past`."""
    past: Tensor | None
    """Keys and values, [layers, 2, heads, cached, dim]; None when `cached` is 0."""
    limit: int
    """Most tokens to sample, at least 1."""
    seed: int
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    done: bool = False


class _BufferLayer(DynamicLayer):
    """One layer of the buffer, as the model sees it. It writes new columns in place."""

    def __init__(self, keys: Tensor, values: Tensor, used: int) -> None:
        super().__init__()
        self._buffers = keys, values
        self._used = used
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        keys, values = self._buffers
        end = self._used + key_states.shape[-2]
        keys[:, :, self._used : end] = key_states
        values[:, :, self._used : end] = value_states
        self._used = end
        self.keys, self.values = keys[:, :, :end], values[:, :, :end]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self._used


class Batch:
    """Rows that are decoded together. `kv` is [layers, 2, rows, heads, columns, dim]."""

    def __init__(
        self, model: Any, shape: CacheShape, rows: Sequence[SampledTurn], prefill_tokens: int
    ):
        self.model, self.shape = model, shape
        # Sort rows by length, so that a slice of them has little padding.
        self.rows = sorted(rows, key=lambda row: (len(row.tokens), row.cached))
        slices = _slices([len(row.tokens) - 1 for row in self.rows], prefill_tokens)
        starts = [max(row.cached for row in self.rows[part]) for part in slices]
        widths = [len(self.rows[part][-1].tokens) - 1 for part in slices]
        self.used = max(start + width for start, width in zip(starts, widths, strict=True))
        columns = self.used + min(_GROW, max(row.limit for row in self.rows))
        count = len(self.rows)
        self.kv = torch.zeros(
            (shape.layers, 2, count, shape.heads, columns, shape.dim),
            dtype=shape.dtype,
            device=shape.device,
        )
        # Additive: 0 where a row may look, the least number elsewhere.
        self.hidden = torch.finfo(shape.dtype).min
        self.mask = torch.full(
            (count, columns), self.hidden, dtype=shape.dtype, device=shape.device
        )
        for index, row in enumerate(self.rows):
            if row.past is not None:
                self.kv[:, :, index, :, : row.cached] = row.past
                self.mask[index, : row.cached] = 0
        for part, start, width in zip(slices, starts, widths, strict=True):
            if width:
                self._prefill(part, start, width)
        self.last = self._ids([[row.tokens[-1]] for row in self.rows])
        self.positions = self._ids([[row.cached + len(row.tokens) - 1] for row in self.rows])

    def step(self) -> Tensor:
        """Read each row's last token. Returns logits of the next: [rows, vocabulary] in fp32."""
        if self.used == self.kv.shape[-2]:
            self.kv = torch.nn.functional.pad(self.kv, (0, 0, 0, _GROW))
            self.mask = torch.nn.functional.pad(self.mask, (0, _GROW), value=self.hidden)
        self.mask[:, self.used] = 0
        logits = self._forward(
            slice(None), self.last, self.positions, self.used, self.mask[:, None, None]
        )
        self.used += 1
        self.positions = self.positions + 1
        return logits[:, -1].float()

    def keep_past(self, index: int) -> None:
        """Copy a row's keys and values from the buffer to the row."""
        row = self.rows[index]
        columns = (self.mask[index, : self.used] == 0).nonzero()[:, 0]
        row.past = self.kv[:, :, index].index_select(-2, columns)
        row.cached = len(columns)

    def drop_done(self) -> Tensor:
        """Remove completed rows. Returns the former indices of the other rows."""
        alive = [index for index, row in enumerate(self.rows) if not row.done]
        places = self._ids(alive)
        self.rows = [self.rows[index] for index in alive]
        self.kv = self.kv.index_select(2, places)
        self.mask = self.mask.index_select(0, places)
        self.positions = self.positions.index_select(0, places)
        self.last = self.last.index_select(0, places)
        return places

    def _prefill(self, part: slice, start: int, width: int) -> None:
        """Read all but the last token of a slice of rows into columns [start, start + width)."""
        rows = self.rows[part]
        # The columns of the padding on the right stay masked, so no token attends to them.
        ids = self._ids([[*row.tokens[:-1], *[0] * (width + 1 - len(row.tokens))] for row in rows])
        offsets = torch.arange(width, device=self.shape.device)
        positions = self._ids([[row.cached] for row in rows]) + offsets
        causal = torch.where(offsets[:, None] >= offsets, 0.0, self.hidden).to(self.shape.dtype)
        mask = torch.cat(
            [
                self.mask[part, None, None, :start].expand(-1, -1, width, -1),
                causal.expand(len(rows), 1, -1, -1),
            ],
            dim=-1,
        )  # [rows, 1, width, start + width]
        self._forward(part, ids, positions, start, mask)
        for index, row in enumerate(rows, part.start):
            self.mask[index, start : start + len(row.tokens) - 1] = 0

    def _forward(
        self, part: slice, ids: Tensor, positions: Tensor, used: int, mask: Tensor
    ) -> Tensor:
        layers: list[Any] = [_BufferLayer(kv[0, part], kv[1, part], used) for kv in self.kv]
        output = self.model(
            input_ids=ids,
            attention_mask=mask[..., : used + ids.shape[1]],
            position_ids=positions,
            past_key_values=Cache(layers=layers),
            use_cache=True,
            logits_to_keep=1,
        )
        return torch.as_tensor(output.logits)

    def _ids(self, values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.shape.device)


def _slices(widths: Sequence[int], budget: int) -> list[slice]:
    """Slices of ascending widths that stay within the budget and are not mostly padding."""
    cuts = [0]
    for index, width in enumerate(widths):
        too_many = (index - cuts[-1] + 1) * width > budget
        too_ragged = width > 2 * widths[cuts[-1]] + 16
        if index > cuts[-1] and (too_many or too_ragged):
            cuts.append(index)
    return [slice(a, b) for a, b in zip(cuts, [*cuts[1:], len(widths)], strict=True)]


@torch.inference_mode()
def sample(
    model: Any,
    shape: CacheShape,
    rows: Sequence[SampledTurn],
    stop_ids: frozenset[int],
    temperature: float,
    prefill_tokens: int = 8192,
) -> Iterator[SampledTurn]:
    """Sample a turn for each row; store its tokens, log-probabilities and cache in the row.

    Yields each row when it is complete. The caller's work in between has no effect.

    Each token uses one uniform number from the row's own seed, through the inverse distribution
    function. So the other rows of the batch affect only the last digits of the logits. The
    log-probabilities are those of the sampling distribution, in fp32. Temperature 0 takes the
    largest logit and reports the log-probabilities of temperature 1.
    """
    batch = Batch(model, shape, rows, prefill_tokens)
    limit = max(row.limit for row in batch.rows)
    generators = [torch.Generator().manual_seed(row.seed) for row in batch.rows]
    uniform = [torch.rand(limit, generator=g, dtype=torch.float64) for g in generators]
    noise = torch.stack(uniform).to(shape.device)  # [rows, tokens]
    number = 0
    while batch.rows:
        logits = batch.step()
        logprobs = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
        if temperature:
            # Inverse distribution function: the first token whose cumulated share exceeds `at`.
            cumulated = logprobs.double().exp().cumsum(-1)
            at = noise[:, number, None] * cumulated[:, -1:]
            batch.last = torch.searchsorted(cumulated, at, right=True)
        else:
            batch.last = logits.argmax(-1, keepdim=True)
        chosen = logprobs.gather(-1, batch.last)[:, 0].tolist()
        tokens = batch.last[:, 0].tolist()
        number += 1
        for index, row in enumerate(batch.rows):
            if row.done:
                continue
            row.sampled.append(tokens[index])
            row.logprobs.append(chosen[index])
            if tokens[index] in stop_ids or len(row.sampled) == row.limit:
                row.done = True
                batch.keep_past(index)
                yield row
        running = sum(not row.done for row in batch.rows)
        if running <= len(batch.rows) // 2:
            noise = noise.index_select(0, batch.drop_done())
