"""Batched sampling over growing conversations: one loop over a buffer of keys and values.

A conversation keeps the keys and values of the tokens it has read, so a turn costs only its new
tokens. What rows have in common is read once: the agents of a rollout begin with the same system
message, and the trees of a group read the same question, and often the same observation. Each
token that a row samples uses a number of the row's own, so guesses of several tokens can be
checked in one forward pass and change nothing but the speed. Completed rows leave the batch.

Neighbours: `row_buffer.py` (the forward pass), `drafts.py` (the guesses), `hf_policy.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from agent.decoding import row_buffer
from agent.decoding.drafts import Drafter, DraftStore
from agent.decoding.prefix_tree import in_order
from agent.decoding.row_buffer import CacheShape

_GROW = 64
"""Columns that a full buffer grows by."""
_SHARED = 16
"""Least tokens in common for which a row waits until another one has read them."""
_PREFILL = 8192
"""Most tokens that are read at once."""
_GUESSED = 512
"""Most tokens of a step with guesses, which bounds its logits."""
_FREE_TOKENS = {"cpu": 16.0}
"""Tokens that cost as much arithmetic as reading the weights takes time, by type of device."""
_OTHER_FREE_TOKENS = 128.0
_ROW_COST = 0.8
"""Time of a row in a step for its keys and values, as a multiple of a token's arithmetic."""
_BLOCK = 256
"""Entries of the vocabulary that are summed up at once."""


@dataclass
class SampledTurn:
    """A turn to sample, and its outcome."""

    place: int
    """Index of the request."""
    tokens: list[int]
    """All tokens of the conversation before the turn, more than `cached`."""
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


class Batch:
    """Rows that are decoded together. `kv` is [layers, 2, rows, heads, columns, dim]."""

    def __init__(self, model: Any, shape: CacheShape, rows: Sequence[SampledTurn]) -> None:
        self.model, self.shape = model, shape
        # In this order, no earlier row has more in common with a row than the one before it.
        order, shared = in_order([row.tokens[:-1] for row in rows])
        self.rows = [rows[index] for index in order]
        self.length = [row.cached for row in self.rows]
        """Tokens of each row that are in the buffer."""
        self.newest = [row.tokens[-1] for row in self.rows]
        """Last token of each row, which the next step reads."""
        columns = max(len(row.tokens) + min(_GROW, row.limit) for row in self.rows)
        self.kv = shape.buffer(len(self.rows), columns)
        for index, row in enumerate(self.rows):
            if row.past is not None:
                self.kv[:, :, index, :, : row.cached] = row.past
        for shares in _levels(self.rows, shared):
            self._read_level(shares)

    def step(self, guesses: Sequence[Sequence[int]] | None = None) -> Tensor:
        """Read the newest token of each row that is not done, and the guess of what follows.

        Args:
            guesses: tokens by row; default: none.

        Returns:
            Logits after each token, one row after the other: [N, vocabulary] in fp32.
        """
        tokens = [
            (index, self.length[index], [self.newest[index], *(guesses[index] if guesses else ())])
            for index, row in enumerate(self.rows)
            if not row.done
        ]
        needed = max(start + len(part) for _, start, part in tokens)
        if needed > self.kv.shape[-2]:
            more = needed - self.kv.shape[-2] + _GROW
            self.kv = torch.nn.functional.pad(self.kv, (0, 0, 0, more))
        return row_buffer.read(self.model, self.kv, tokens, logits=True).float()

    def keep(self, index: int, tokens: Sequence[int]) -> None:
        """Take the tokens that a row has sampled in a step; all but the last are in the buffer."""
        self.length[index] += len(tokens)
        self.newest[index] = tokens[-1]

    def keep_past(self, index: int) -> None:
        """Copy a row's keys and values from the buffer to the row."""
        row = self.rows[index]
        row.cached = self.length[index]
        row.past = self.kv[:, :, index, :, : row.cached].clone()

    def drop_done(self) -> list[int]:
        """Remove completed rows. Returns the former indices of the other rows."""
        alive = [index for index, row in enumerate(self.rows) if not row.done]
        self.rows = [self.rows[index] for index in alive]
        self.length = [self.length[index] for index in alive]
        self.newest = [self.newest[index] for index in alive]
        places = torch.tensor(alive, dtype=torch.long, device=self.shape.device)
        self.kv = self.kv.index_select(2, places)
        return alive

    def _read_level(self, shares: Sequence[_Share]) -> None:
        """Read all but the last token of some rows, after what others have read for them."""
        for share in shares:
            start = self.length[share.row]
            if share.common > start:
                columns = slice(start, share.common)
                self.kv[:, :, share.row, :, columns] = self.kv[:, :, share.owner, :, columns]
                self.length[share.row] = share.common
        unread = sorted(
            (len(self.rows[share.row].tokens) - 1 - self.length[share.row], share.row)
            for share in shares
        )
        unread = [(width, row) for width, row in unread if width > 0]
        for part in _slices([width for width, _ in unread]):
            tokens = [
                (row, self.length[row], self.rows[row].tokens[self.length[row] : -1])
                for row in sorted(row for _, row in unread[part])
            ]
            row_buffer.read(self.model, self.kv, tokens, logits=False)
            for row, start, read in tokens:
                self.length[row] = start + len(read)


@dataclass(frozen=True)
class _Share:
    """What a row takes over from another one before it reads the rest."""

    row: int
    owner: int
    """The row that reads the last token in common."""
    common: int
    """Number of first tokens in common."""


def _levels(rows: Sequence[SampledTurn], shared: Sequence[int]) -> list[list[_Share]]:
    """Shares of rows in lexicographic order; those of a level need only the levels before it.

    Args:
        rows: the rows in this order.
        shared: how many tokens before its last one each row shares with the row before it.
    """
    levels: list[list[_Share]] = []
    owners: list[tuple[int, int, int]] = []  # (end, level, row) of the last row's tokens
    for index, (row, common) in enumerate(zip(rows, shared, strict=True)):
        if common < max(_SHARED, row.cached + 1):
            common = 0
        level, owner = 0, index
        if common:
            while len(owners) > 1 and owners[-2][0] >= common:
                owners.pop()
            _, before, owner = owners[-1]
            level, owners[-1] = before + 1, (common, before, owner)
        else:
            owners = []
        owners.append((len(row.tokens) - 1, level, index))
        levels += [[]] * (level == len(levels))
        levels[level] = [*levels[level], _Share(index, owner, common)]
    return levels


def _slices(widths: Sequence[int]) -> list[slice]:
    """Slices of ascending widths that stay within `_PREFILL` and are not mostly padding."""
    cuts = [0]
    for index, width in enumerate(widths):
        too_many = (index - cuts[-1] + 1) * width > _PREFILL
        too_ragged = width > 2 * widths[cuts[-1]] + 16
        if index > cuts[-1] and (too_many or too_ragged):
            cuts.append(index)
    return [slice(a, b) for a, b in zip(cuts, [*cuts[1:], len(widths)], strict=True) if a < b]


@torch.inference_mode()
def sample(
    model: Any,
    shape: CacheShape,
    rows: Sequence[SampledTurn],
    stop_ids: frozenset[int],
    temperature: float,
    *,
    drafts: DraftStore | None = None,
) -> Iterator[SampledTurn]:
    """Sample a turn for each row; store its tokens, log-probabilities and cache in the row.

    Yields each row when it is complete. The caller's work in between has no effect.

    Each token uses one uniform number from the row's own seed, through the inverse distribution
    function. So the other rows of the batch, and the guesses, affect only the last digits of the
    logits. The log-probabilities are those of the sampling distribution, in fp32. Temperature 0
    takes the largest logit and reports the log-probabilities of temperature 1.

    Args:
        model: the model.
        shape: of its cache.
        rows: turns to sample.
        stop_ids: tokens that end a turn.
        temperature: of the sampling.
        drafts: source of guesses, which gets the completed turns; None: guess nothing.
    """
    batch = Batch(model, shape, rows)
    limit = max(row.limit for row in batch.rows)
    generators = [torch.Generator().manual_seed(row.seed) for row in batch.rows]
    uniform = [torch.rand(limit, generator=g, dtype=torch.float64) for g in generators]
    noise = torch.stack(uniform).to(shape.device)  # [rows, tokens]
    drafters = [Drafter(drafts, list(row.tokens)) for row in batch.rows] if drafts else []
    while batch.rows:
        guesses = _guesses(batch.rows, drafters, shape.device.type)
        logits = batch.step(guesses)
        taken = [
            (index, len(row.sampled) + ahead)
            for index, row in enumerate(batch.rows)
            if not row.done
            for ahead in range(1 + len(guesses[index]))
        ]
        at = noise[tuple(torch.tensor(taken, device=shape.device).T)]
        drawn, chosen = _draw(logits, temperature, at)
        first = 0
        for index, row in enumerate(batch.rows):
            if row.done:
                continue
            new = _true(drawn[first:], guesses[index], row.limit - len(row.sampled), stop_ids)
            row.sampled += new
            row.logprobs += chosen[first : first + len(new)]
            first += 1 + len(guesses[index])
            batch.keep(index, new)
            if drafts:
                drafters[index].text += new
                drafters[index].sampled(new)
            if new[-1] in stop_ids or len(row.sampled) == row.limit:
                row.done = True
                batch.keep_past(index)
                if drafts:
                    drafts.add(drafters[index].text, len(row.tokens))
                yield row
        running = sum(not row.done for row in batch.rows)
        if running <= len(batch.rows) // 2:
            alive = batch.drop_done()
            noise = noise[alive]
            drafters = [drafters[index] for index in alive] if drafts else []


def _guesses(
    rows: Sequence[SampledTurn], drafters: Sequence[Drafter], device: str
) -> list[Sequence[int]]:
    """Guesses of the running rows, as long as they pay; empty ones without drafters."""
    guesses: list[Sequence[int]] = [()] * len(rows)
    if not drafters:
        return guesses
    running = sum(not row.done for row in rows)
    # A guessed token costs its arithmetic, and saves that and its part of a step, if it is right.
    free = _FREE_TOKENS.get(device, _OTHER_FREE_TOKENS)
    worth = 1 / (1 + _ROW_COST + free / running)
    room = max(_GUESSED, 2 * running) - running
    for index, row in enumerate(rows):
        if not row.done:
            most = min(room, row.limit - len(row.sampled) - 1)
            guesses[index] = drafters[index].guess(worth, most)
            room -= len(guesses[index])
    return guesses


def _true(
    drawn: Sequence[int], guess: Sequence[int], room: int, stop_ids: frozenset[int]
) -> list[int]:
    """Drawn tokens up to the first that the guess does not foresee, a stop or the limit."""
    new: list[int] = []
    for token, guessed in zip(drawn, [*guess, None], strict=False):
        new.append(token)
        if token != guessed or token in stop_ids or len(new) == room:
            break
    return new


def _draw(logits: Tensor, temperature: float, at_N: Tensor) -> tuple[list[int], list[float]]:
    """Tokens and their log-probabilities.

    Args:
        logits: [N, vocabulary], in fp32.
        temperature: of the sampling; 0 takes the largest logit.
        at_N: uniform numbers, in float64.
    """
    shares = torch.softmax(logits / temperature if temperature else logits, dim=-1)
    tokens = _inverse(shares, at_N) if temperature else logits.argmax(-1)
    chosen = shares.gather(-1, tokens[:, None])[:, 0].log()
    return tokens.tolist(), chosen.tolist()


def _inverse(shares: Tensor, at_N: Tensor) -> Tensor:
    """Inverse distribution function: the first tokens whose cumulated shares exceed `at`.

    It finds the block of the vocabulary first, since float64 sums of all entries are slow.
    """
    count, entries = shares.shape
    blocks = torch.nn.functional.pad(shares, (0, -entries % _BLOCK)).view(count, -1, _BLOCK)
    sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    at = at_N[:, None] * sums[:, -1:]
    block = torch.searchsorted(sums, at, right=True).clamp_(max=sums.shape[1] - 1)
    before = torch.nn.functional.pad(sums, (1, 0)).gather(1, block)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))[:, 0].double().cumsum(-1)
    # The sums of a block are the same numbers, but for the order of the additions.
    place = torch.searchsorted(
        inside, (at - before).clamp_(max=inside[:, -1:] * (1 - 1e-15)), right=True
    )
    return (block * _BLOCK + place)[:, 0]
