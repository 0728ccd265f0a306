"""The sampling loop against plain passes over whole conversations, one row and token at a time."""

import random
import weakref
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from helpers.random_model import SIZES
from helpers.recorded_graph import RecordedGraph, record_graphs

from agent.decoding.drafts import Drafter, DraftStore
from agent.decoding.row_buffer import CacheShape, StaticSteps
from agent.decoding.sampling import SampledTurn, sample

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it

STOP, WORDS = 3, 40


@pytest.fixture(scope="module")
def model() -> Any:
    """A random decoder with grouped heads that repeats itself, as agents do."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    small = {"vocab_size": WORDS, "hidden_size": 32, "head_dim": 8, "initializer_range": 0.35}
    sizes = SIZES | small | {"tie_word_embeddings": False}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=2)).eval()


def prompts() -> list[list[int]]:
    """Beginnings in common, nested and equal ones, and one that begins like none."""
    rng = random.Random(1)

    def some(count: int) -> list[int]:
        return rng.choices(range(4, WORDS), k=count)

    system, one, other = some(40), some(30), some(21)
    first = [system + one + tail for tail in ([], [], some(1), some(25), some(3))]
    return [*first, system + other, system + other, some(9), [7], system[:20], system]


def turns(asked: Sequence[list[int]], limit: int = 24) -> list[SampledTurn]:
    return [SampledTurn(n, a, 0, None, limit - n % 5, seed=100 + n) for n, a in enumerate(asked)]


@torch.no_grad()
def reference(model: Any, row: SampledTurn, temperature: float) -> tuple[list[int], list[float]]:
    """Tokens and log-probabilities of a turn, with a pass over the whole conversation for each."""
    generator = torch.Generator().manual_seed(row.seed)
    noise = torch.rand(row.limit, generator=generator, dtype=torch.float64)
    ids, logprobs = list(row.tokens), []
    for number in range(row.limit):
        logits = model(input_ids=torch.tensor([ids])).logits[0, -1].double()
        scores = torch.log_softmax(logits / (temperature or 1.0), -1)
        below = scores.exp().cumsum(-1)
        token = int((below > noise[number] * below[-1]).nonzero()[0, 0])
        token = token if temperature else int(logits.argmax())
        ids.append(token)
        logprobs.append(float(scores[token]))
        if token == STOP:
            break
    return ids[len(row.tokens) :], logprobs


def run(model: Any, rows: list[SampledTurn], temperature: float, drafts: Any = None) -> None:
    shape = CacheShape.of(model)
    steps = StaticSteps.on(model, shape)
    found = sample(model, shape, rows, frozenset([STOP]), temperature, drafts=drafts, steps=steps)
    assert sorted(row.place for row in found) == [row.place for row in rows]


def tokens_read(model: Any, rows: list[SampledTurn], temperature: float) -> int:
    """Sample turns; how many tokens the model reads for them."""
    read: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda _, args, given: read.append(given["input_ids"].numel()), with_kwargs=True
    )
    run(model, rows, temperature)
    hook.remove()
    return sum(read)


def require_equal(model: Any, rows: Sequence[SampledTurn], temperature: float) -> None:
    """Tokens, log-probabilities and caches are those of plain passes."""
    for row in rows:
        tokens, logprobs = reference(model, row, temperature)
        assert row.sampled == tokens
        assert row.logprobs == pytest.approx(logprobs, abs=1e-4)
        ids = torch.tensor([row.tokens + row.sampled[:-1]])
        with torch.no_grad():
            layers = model(input_ids=ids, use_cache=True).past_key_values.layers
        plain = torch.stack([torch.stack([layer.keys[0], layer.values[0]]) for layer in layers])
        assert row.cached == ids.shape[1]
        torch.testing.assert_close(row.past, plain, rtol=0, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("kind", ["none", "graph", "empty", "right", "wrong", "overlong"])
def test_turns_are_those_of_plain_passes_whatever_is_guessed(model, temperature, kind, monkeypatch):
    if kind == "graph":
        record_graphs(monkeypatch)
    known = turns(prompts())
    run(model, known, temperature)
    store = None if kind == "none" else DraftStore()
    for row in known:
        new = row.sampled
        if kind == "wrong":
            new = [t if n % 3 else (t + 1) % WORDS for n, t in enumerate(new)]
        if kind == "overlong":  # beyond the limit and beyond the stop
            new = [*new, *range(WORDS)]
        if kind in ("right", "wrong", "overlong"):
            store.add([*row.tokens, *new], len(row.tokens))
    rows = turns(prompts())
    run(model, rows, temperature, store)
    require_equal(model, rows, temperature)
    assert len({len(row.sampled) for row in rows}) > 3
    assert any(row.sampled[-1] == STOP for row in rows) or temperature == 0
    assert (RecordedGraph.replays > 20) == (kind == "graph")


FAULTS = {
    "torch.cuda.graph": mock.Mock(side_effect=RuntimeError("not permitted")),
    "helpers.recorded_graph.RecordedGraph.replay": mock.Mock(),
}


@pytest.mark.parametrize("part", FAULTS)
def test_a_graph_that_fails_or_repeats_old_logits_is_not_used(model, monkeypatch, caplog, part):
    record_graphs(monkeypatch)
    monkeypatch.setattr(part, FAULTS[part])
    assert StaticSteps.on(model, CacheShape.of(model)) is None
    why = "not permitted" if part == "torch.cuda.graph" else "its logits are off by"
    assert f"no CUDA graph of a step can be made: {why}" in caplog.text


def test_batches_of_a_size_share_graphs_in_one_memory(model, monkeypatch):
    record_graphs(monkeypatch)
    steps, made = StaticSteps.on(model, shape := CacheShape.of(model)), []
    for count in (5, 5, 11, 11, 5):
        rows = turns(prompts()[:count])
        list(sample(model, shape, rows, frozenset([STOP]), 1.0, steps=steps))
        require_equal(model, rows, 1.0)
        made.append(RecordedGraph.made)
    assert made[0] == made[1] < made[2] == made[3] == made[4]  # the larger batch has shrunk, too
    (step, *_) = map(weakref.ref, steps._steps.values())
    del steps
    assert step() is None  # at once, since another graph may be made next


def test_a_row_is_guessed_to_repeat_the_longest_match_of_its_own_conversation():
    quote = list(range(10, 20))
    text = [*quote, 1, 2, 3, *quote[7:], 4, 5, 6, *quote]
    assert list(Drafter(DraftStore(), text).guess(0.01, 3)) == [1, 2, 3]


def test_many_conversations_that_branch_at_random_have_their_own_caches(model):
    rng = random.Random(7)
    asked = [[rng.randrange(4, WORDS)] for _ in range(3)]
    for _ in range(60):
        base = rng.choice(asked)
        cut = rng.randint(1, len(base))
        asked.append(base[:cut] + rng.choices(range(4, 8), k=rng.randint(1, 40)))
    rows = turns(asked, limit=6)
    assert tokens_read(model, rows, 1.0) < sum(map(len, asked))
    require_equal(model, rows, 1.0)


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
def test_equal_rows_are_read_once_until_they_part(model, temperature):
    prompt = prompts()[3]
    rows = turns([prompt] * 12)
    read = tokens_read(model, rows, temperature)
    require_equal(model, rows, temperature)
    beginnings = {tuple(row.sampled[:n]) for row in rows for n in range(len(row.sampled))}
    assert read == 1 + len(prompt) - 1 + len(beginnings)  # one for the shape of the cache
    assert len(beginnings) < sum(len(row.sampled) for row in rows)
