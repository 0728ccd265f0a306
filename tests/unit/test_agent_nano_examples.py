from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch

from agent.nano.examples import Encoder, Example, collate, noisy
from agent.nano.plans import BEST, ReadingTalks
from agent.nano.reading import ReadingLessons
from agent.nano.settings import NanoSettings
from agent.nano.slips import with_slip
from agent.nano.tokenizer import render, syllable_ids
from agent.nano.warmstart import build, weighted_loss
from env.problems.lexicon import FIELDS

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it

TALKS = ReadingTalks(64)


@pytest.fixture(scope="module")
def base():
    return build(NanoSettings(), ReadingLessons(NanoSettings(), 64))


def root():
    return TALKS.root(Random(0), BEST, "Kesrog", "speech", 4)


def test_weights_tell_read_written_and_names_apart(base):
    talk = root()
    words = base.tokenizer.encode("speech", add_special_tokens=False)
    encoder = Encoder(base.tokenizer, observation=0.1, written=1.0, name=3.0, words=words)
    (example,) = encoder.encode([talk])
    weighed = [
        (base.tokenizer.decode([token]), round(float(weight), 3))
        for token, weight in zip(example.ids, example.weights, strict=True)
    ]
    assert "".join(text for text, _ in weighed) == render(talk)
    names = [weight for text, weight in weighed if text in ("Kes", "rog")]
    assert names == [0.1] * 2 + [3.0] * 2  # in the question; the keyword
    fields = [weight for text, weight in weighed if text.strip() == "speech"]
    assert fields == [0.1, 3.0]  # in the question; of the sentences that are kept
    ends = [weight for text, weight in weighed if text == "<|end|>"]
    assert ends == [0.1, 0.1, 1.0, 0.1, 1.0]
    assert {weight for text, weight in weighed if text == "<|assistant|>"} == {0.1}
    assert weighed[0][1] == 0.0


def test_a_broken_turn_is_read_and_never_learnt(base):
    talk = root()
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


def test_padding_does_not_change_the_loss(base):
    encoder = Encoder(base.tokenizer, 0.1, 1.0, 3.0)
    short, long = encoder.encode([TALKS.child("Kesrog", "speech", "field"), root()])
    with torch.no_grad():
        together = weighted_loss(base.model, collate([short, long]))
        parts = [(weighted_loss(base.model, collate([e])), e.weights.sum()) for e in (short, long)]
    expected = sum(loss * weight for loss, weight in parts) / sum(weight for _, weight in parts)
    assert together.item() == pytest.approx(float(expected), rel=1e-4)


def test_drills_carry_loss_on_names_and_fields_only(base):
    feed = ReadingLessons(NanoSettings(drill_steps=2), 64).feed(base.tokenizer)
    next(feed)
    roots = next(feed)
    syllables = {token for part in syllable_ids(base.tokenizer) for token in part}
    learnt = set(roots.ids[roots.weights > 0].tolist())
    fields = {token for token in learnt if base.tokenizer.decode([token]) in FIELDS}
    assert learnt - fields <= syllables
    assert len(fields) > 4
    assert ((roots.weights > 0).sum(1) >= 3).all()
