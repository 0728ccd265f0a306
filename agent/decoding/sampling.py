"""Batched sampling over growing conversations: one loop over a buffer of keys and values.

A conversation keeps the keys and values of the tokens it has read, so a turn costs only its new
tokens. What rows have in common is read once: the agents of a rollout begin with the same system
message, and the trees of a group read the same question, and often the same observation. Rows that
are equal are decoded as one until they sample something else. Each token that a row samples uses a
number of the row's own, so guesses of several tokens can be checked in one forward pass and change
nothing but the speed. Completed rows leave the batch.

Neighbours: `row_buffer.py` (the forward pass), `drafts.py` (the guesses), `hf_policy.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from agent.decoding import row_buffer
from agent.decoding.drafts import Drafter, DraftStore
from agent.decoding.prefix_tree import in_order
from agent.decoding.row_buffer import LEAST_ROWS, CacheShape, StaticSteps

_GROW = 64
"""Columns that a full buffer grows by."""
_SHARED = 16
"""Least tokens in common for which a row waits until another one has read them."""
_PREFILL = 8192
"""Most tokens that are read at once."""
_GUESSED = 512
"""Most tokens of a step with guesses, which bounds its logits."""
_FREE_TOKENS = 16.0
"""Tokens that cost a CPU as much arithmetic as reading the weights takes time."""
_ROW_COST = 0.8
"""Time of a row in a step for its keys and values, as a multiple of a token's arithmetic."""
_BLOCK = 256
"""Entries of the vocabulary that are summed up at once."""


@dataclass
class SampledTurn:
    """A turn to sample, and its outcome."""

    place: int
    """Index of the request, which no other turn of a batch has."""
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


@dataclass
class _Line:
    """Rows whose tokens are the same so far, so that a pass reads them once."""

    rows: list[SampledTurn]
    slot: int
    """Row of the buffer."""
    length: int
    """Tokens in the buffer: once the prompt is read, all but the last one."""

    @property
    def newest(self) -> int:
        """Last token, which the next step reads."""
        row = self.rows[0]
        return (row.sampled or row.tokens)[-1]


class Batch:
    """Rows that are decoded together, as lines that part where their rows sample other tokens.

    `kv` is [layers, 2, slots, heads, columns, dim], with a slot for each running row.
    """

    def __init__(
        self, model: Any, shape: CacheShape, rows: Sequence[SampledTurn], steps: StaticSteps | None
    ) -> None:
        self.model, self.shape, self.steps = model, shape, steps
        same: dict[tuple[int, ...], list[SampledTurn]] = {}
        for row in rows:
            same.setdefault(tuple(row.tokens), []).append(row)
        # The first of a line lends its cache, and its limit ends the guesses.
        parts = [sorted(some, key=lambda row: (-row.cached, -row.limit)) for some in same.values()]
        # In this order, no earlier line has more in common with a line than the one before it.
        order, shared = in_order([some[0].tokens[:-1] for some in parts])
        self.lines = [_Line(parts[at], slot, parts[at][0].cached) for slot, at in enumerate(order)]
        self.spare = list(range(len(parts), len(rows)))
        """Slots without a line."""
        room = max(row.limit for row in rows) if steps else _GROW
        columns = max(len(row.tokens) + min(room, row.limit) for row in rows)
        self.static = steps.of(len(rows), columns) if steps else None
        self.kv = self.static.buffer if self.static else shape.buffer(len(rows), columns)
        firsts = [line.rows[0] for line in self.lines]
        for slot, row in enumerate(firsts):
            if row.past is not None:
                self.kv[:, :, slot, :, : row.cached] = row.past
        for shares in _levels(firsts, shared):
            self._read_level(shares)

    def step(self, guesses: Sequence[Sequence[int]]) -> Tensor:
        """Read the newest token of each line, and the guess of what follows.

        Args:
            guesses: tokens by line.

        Returns:
            Logits after each token, one line after the other: [N, vocabulary] in fp32.
        """
        tokens = [
            (line.slot, line.length, [line.newest, *guess])
            for line, guess in zip(self.lines, guesses, strict=True)
        ]
        needed = max(start + len(part) for _, start, part in tokens)
        if needed > self.kv.shape[-2]:
            more = needed - self.kv.shape[-2] + _GROW
            self.kv = torch.nn.functional.pad(self.kv, (0, 0, 0, more))
        if self.static:
            return self.static.read(tokens).float()
        used = self.kv[:, :, : tokens[-1][0] + 1]
        return row_buffer.read(self.model, used, tokens, logits=True).float()

    def keep(self) -> None:
        """Part the rows that sampled other tokens; those that are done leave with their cache."""
        lines = []
        for line in self.lines:
            parts: dict[tuple[int, ...], list[SampledTurn]] = {}
            for row in line.rows:
                if row.done:
                    row.cached = len(row.tokens) + len(row.sampled) - 1
                    row.past = self.kv[:, :, line.slot, :, : row.cached].clone()
                else:
                    parts.setdefault(tuple(row.sampled), []).append(row)
            self.spare += [] if parts else [line.slot]
            for number, (sampled, some) in enumerate(parts.items()):
                length = len(some[0].tokens) + len(sampled) - 1
                slot = self._copied(line.slot, length) if number else line.slot
                lines.append(_Line(some, slot, length))
        self.lines = sorted(lines, key=lambda line: line.slot)
        running = sum(len(line.rows) for line in lines)
        if running <= self.kv.shape[2] // 2 and not (self.static and running < LEAST_ROWS):
            slots = [*(line.slot for line in self.lines), *self.spare][:running]
            places = torch.tensor(slots, dtype=torch.long, device=self.shape.device)
            self.kv = self.kv.index_select(2, places)
            if self.steps:
                self.static = self.steps.of(running, self.kv.shape[-2])
                self.static.buffer[:, :, :running] = self.kv
                self.kv = self.static.buffer
            self.spare = list(range(len(lines), running))
            for slot, line in enumerate(self.lines):
                line.slot = slot

    def _copied(self, slot: int, length: int) -> int:
        """The lowest spare slot, with the first columns of another one."""
        self.spare.remove(to := min(self.spare))
        self.kv[:, :, to, :, :length] = self.kv[:, :, slot, :, :length]
        return to

    def _read_level(self, shares: Sequence[tuple[int, int, int]]) -> None:
        """Read all but the last token of some lines, after what others have read for them."""
        unread = []
        for index, owner, common in shares:
            line = self.lines[index]
            if common > line.length:
                columns = slice(line.length, common)
                self.kv[:, :, index, :, columns] = self.kv[:, :, owner, :, columns]
                line.length = common
            if width := len(line.rows[0].tokens) - 1 - line.length:
                unread.append((width, index))
        unread.sort()
        used = self.kv[:, :, : sum(len(line.rows) for line in self.lines)]
        for part in _slices([width for width, _ in unread]):
            lines = [self.lines[index] for index in sorted(index for _, index in unread[part])]
            tokens = [(one.slot, one.length, one.rows[0].tokens[one.length : -1]) for one in lines]
            row_buffer.read(self.model, used, tokens, logits=False)
            for line in lines:
                line.length = len(line.rows[0].tokens) - 1


def _levels(rows: Sequence[SampledTurn], shared: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """What rows in lexicographic order take over from others before they read the rest.

    Args:
        rows: the rows in this order, each with other tokens.
        shared: how many tokens before its last one each row shares with the row before it.

    Returns:
        (row, the row that reads the last token in common, number of first tokens in common). A
        level needs only the levels before it.
    """
    levels: list[list[tuple[int, int, int]]] = []
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
        levels[level] = [*levels[level], (index, owner, common)]
    return levels


def _slices(widths: Sequence[int]) -> list[slice]:
    """Slices of ascending widths that stay within `_PREFILL` and are not mostly padding."""
    cuts = [0]
    for index, width in enumerate(widths):
        too_many = (index - cuts[-1] + 1) * width > _PREFILL
        if index > cuts[-1] and (too_many or width > 2 * widths[cuts[-1]] + 16):
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
    steps: StaticSteps | None = None,
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
        steps: static steps, which guess nothing.
    """
    batch = Batch(model, shape, rows, steps)
    drafts = None if steps else drafts
    limit = max(row.limit for row in rows)
    generators = [torch.Generator().manual_seed(row.seed) for row in rows]
    uniform = [torch.rand(limit, generator=g, dtype=torch.float64) for g in generators]
    noise = torch.stack(uniform).to(shape.device)  # [rows, tokens]
    numbers = {row.place: number for number, row in enumerate(rows)}
    drafters = {row.place: Drafter(drafts, list(row.tokens)) for row in rows} if drafts else {}
    while batch.lines:
        guesses = _guesses(batch.lines, drafters)
        logits = batch.step(guesses)
        starts = itertools.accumulate((1 + len(guess) for guess in guesses), initial=0)
        running = [
            (row, start, guess)
            for line, start, guess in zip(batch.lines, starts, guesses, strict=False)
            for row in line.rows
        ]
        wanted = [
            (start + ahead, numbers[row.place], len(row.sampled) + ahead)
            for row, start, guess in running
            for ahead in range(1 + len(guess))
        ]
        of_M, *at = torch.tensor(wanted, device=shape.device).T
        drawn, chosen = _draw(logits, of_M, temperature, noise[tuple(at)])
        first = 0
        for row, _, guess in running:
            tokens = _true(drawn[first:], guess, row.limit - len(row.sampled), stop_ids)
            row.sampled += tokens
            row.logprobs += chosen[first : first + len(tokens)]
            first += 1 + len(guess)
            row.done = tokens[-1] in stop_ids or len(row.sampled) == row.limit
            if drafts:
                drafters[row.place].text += tokens
                drafters[row.place].sampled(tokens)
                if row.done:
                    drafts.add(drafters[row.place].text, len(row.tokens))
        batch.keep()
        yield from (row for row, _, _ in running if row.done)


def _guesses(lines: Sequence[_Line], drafters: Mapping[int, Drafter]) -> list[Sequence[int]]:
    """Guess of each line by its first row, as long as it pays; empty ones without drafters."""
    guesses: list[Sequence[int]] = [()] * len(lines)
    if not drafters:
        return guesses
    # A guessed token costs its arithmetic, and saves that and its part of a step, if it is right.
    worth = 1 / (1 + _ROW_COST + _FREE_TOKENS / len(lines))
    room = max(_GUESSED, 2 * len(lines)) - len(lines)
    for index, line in enumerate(lines):
        row = line.rows[0]
        most = min(room, row.limit - len(row.sampled) - 1)
        guesses[index] = drafters[row.place].guess(worth, most)
        room -= len(guesses[index])
    return guesses


def _true(drawn: Sequence[int], guess: Sequence[int], room: int, stop: frozenset[int]) -> list[int]:
    """Drawn tokens up to the first that the guess does not foresee, a stop or the limit."""
    new: list[int] = []
    for token, guessed in zip(drawn, [*guess, None], strict=False):
        new.append(token)
        if token != guessed or token in stop or len(new) == room:
            break
    return new


def _draw(
    logits: Tensor, of_M: Tensor, temperature: float, at_M: Tensor
) -> tuple[list[int], list[float]]:
    """Tokens and their log-probabilities.

    Args:
        logits: [N, vocabulary], in fp32.
        of_M: which of the N each token is drawn from.
        temperature: of the sampling; 0 takes the largest logit.
        at_M: uniform numbers, in float64.
    """
    shares = torch.softmax(logits / temperature if temperature else logits, dim=-1)
    tokens = _inverse(shares, of_M, at_M) if temperature else logits.argmax(-1)[of_M]
    return tokens.tolist(), shares[of_M, tokens].log().tolist()


def _inverse(shares: Tensor, of_M: Tensor, at_M: Tensor) -> Tensor:
    """Inverse distribution function: the first tokens whose cumulated shares exceed `at_M`.

    It finds the block of the vocabulary first, since float64 sums of all entries are slow.
    """
    count, entries = shares.shape
    blocks = torch.nn.functional.pad(shares, (0, -entries % _BLOCK)).view(count, -1, _BLOCK)
    sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)[of_M]
    at = at_M[:, None] * sums[:, -1:]
    block = torch.searchsorted(sums, at, right=True).clamp_(max=sums.shape[1] - 1)
    before = torch.nn.functional.pad(sums, (1, 0)).gather(1, block)
    inside = blocks[of_M, block[:, 0]].double().cumsum(-1)
    # The sums of a block are the same numbers, but for the order of the additions.
    place = torch.searchsorted(
        inside, (at - before).clamp_(max=inside[:, -1:] * (1 - 1e-15)), right=True
    )
    return (block * _BLOCK + place)[:, 0]
