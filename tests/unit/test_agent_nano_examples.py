from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch

from agent.nano import drills, strategies
from agent.nano.demonstrations import root_conversation
from agent.nano.examples import Encoder, Example, batches, collate, noisy
from agent.nano.settings import MixtureSettings, NanoSettings
from agent.nano.slips import with_slip
from agent.nano.tokenizer import render, syllable_ids
from agent.nano.warmstart import untaught, weighted_loss
from env.problems.settings import SyntheticSettings
from env.problems.synthetic import generate

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it

X, Y = "Kesrog", "Toxlim"


@pytest.fixture(scope="module")
def base():
    return untaught(NanoSettings(), generate(SyntheticSettings(collections={"train": 2})))


def test_weights_tell_read_written_and_names_apart(base):
    talk = root_conversation(strategies.BEST_ROOT, f"Report {X} on {Y}.", 8, 3, hint=False)
    (example,) = Encoder(base.tokenizer, observation=0.1, written=1.0, name=3.0).encode([talk])
    weighed = [
        (base.tokenizer.decode([token]), round(float(weight), 3))
        for token, weight in zip(example.ids, example.weights, strict=True)
    ]
    assert "".join(text for text, _ in weighed) == render(talk)
    names = [weight for text, weight in weighed if text in ("Kes", "rog", "Tox", "lim")]
    assert names == [0.1] * 4 + [3.0] * 8  # in the question; keyword, filter, and both in a prompt
    ends = [weight for text, weight in weighed if text == "<|end|>"]
    assert ends == [0.1, 0.1, 1.0, 0.1, 1.0]
    assert {weight for text, weight in weighed if text == "<|assistant|>"} == {0.1}
    assert weighed[0][1] == 0.0


def test_a_broken_turn_is_read_and_never_learnt(base):
    talk = root_conversation(strategies.BEST_ROOT, f"Report {X} on {Y}.", 8, 3, hint=False)
    slipped, at = with_slip(talk, Random(1))
    encoder = Encoder(base.tokenizer, observation=0.1, written=1.0, name=3.0)
    (plain,), (example,) = encoder.encode([talk]), encoder.encode([slipped], [at])
    assert render(slipped) == base.tokenizer.decode(example.ids)
    # The tokens with a loss are the same as without the slip.
    learnt, before = example.ids[example.weights >= 1], plain.ids[plain.weights >= 1]
    assert learnt.tolist() == before.tolist()


def test_noise_replaces_written_tokens_and_removes_their_loss():
    ids = np.arange(200)
    weights = np.where(ids < 100, 0.1, 1.0).astype(np.float32)
    changed = noisy(Example(ids, weights), 0.2, Random(0))
    hit = np.flatnonzero(changed.weights != weights)
    assert 5 <= len(hit) <= 40
    assert hit.min() >= 100
    assert set(changed.weights[hit]) == {0.0}
    assert (np.delete(changed.ids, hit) == np.delete(ids, hit)).all()
    assert (changed.ids[hit] != ids[hit]).any()
    assert noisy(Example(ids, weights), 0.0, Random(0)).ids is ids


def test_batches_hold_every_example_once_within_the_bound():
    rng = Random(0)
    examples = [
        Example(np.full(length, n + 1), np.ones(length, dtype=np.float32))
        for n, length in enumerate(rng.choices(range(5, 60), k=300))
    ]
    seen = []
    for batch in batches(examples, batch_tokens=512, rng=Random(1)):
        assert batch.ids.numel() <= 512
        assert ((batch.ids > 0) == (batch.weights > 0)).all()
        seen += batch.ids[:, 0].tolist()
    assert sorted(seen) == list(range(1, 301))


def test_padding_does_not_change_the_loss(base):
    rng = Random(3)
    encoder = Encoder(base.tokenizer, 0.1, 1.0, 3.0)
    mixture = MixtureSettings()
    short, long = encoder.encode(
        [drills.child_binding(rng, mixture), drills.root_binding(rng, mixture)]
    )
    with torch.no_grad():
        together = weighted_loss(base.model, collate([short, long]))
        parts = [(weighted_loss(base.model, collate([e])), e.weights.sum()) for e in (short, long)]
    expected = sum(loss * weight for loss, weight in parts) / sum(weight for _, weight in parts)
    assert together.item() == pytest.approx(float(expected), rel=1e-4)


def test_a_repeat_is_determined_by_its_first_half(base):
    first, second = syllable_ids(base.tokenizer)
    drill = drills.repeat(Random(0), first, second, start=1)
    half = (len(drill.ids) - 1) // 2
    assert (drill.ids[1 : half + 1] == drill.ids[half + 1 :]).all()
    assert len(set(drill.ids[1 : half + 1].tolist())) == half
    assert not drill.weights[: half + 2].any()
    assert drill.weights[half + 2 :].all()


def test_drills_carry_loss_on_names_in_the_code_only(base):
    encoder = Encoder(base.tokenizer, observation=0.0, written=0.0, name=1.0)
    rng = Random(0)
    mixture = MixtureSettings()
    syllables = {token for part in syllable_ids(base.tokenizer) for token in part}
    for talk in (drills.child_binding(rng, mixture), drills.root_binding(rng, mixture)):
        (example,) = encoder.encode([talk])
        assert set(example.ids[example.weights > 0].tolist()) <= syllables
        assert (example.weights > 0).sum() >= 4
