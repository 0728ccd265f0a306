"""The nano model: its tokenizer, its examples, and what lessons teach and leave out."""

import re
from collections import Counter
from random import Random

import numpy as np
import pytest
import torch

from agent.errors import PolicyError
from agent.nano.examples import Encoder, Example, collate, noisy
from agent.nano.lessons import ReadingLessons
from agent.nano.plans import BEST, UNKNOWN, ReadingPlan, ReadingTalks, draw_plan, with_slip
from agent.nano.sizes import NanoModelSettings, NanoSettings
from agent.nano.teaching import Taught, build, teach, weighted_loss
from agent.nano.tokenizer import build_tokenizer, render, syllable_ids
from env.problems.fields import BENCHMARK
from env.problems.lexicon import FIELDS, lexicon, strangers, untaught

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it

SETTINGS = NanoSettings(
    model=NanoModelSettings(hidden=64, layers=2, heads=2, mlp=64, vocab=720),
    steps=6,
    min_steps=4,
    drill_steps=2,
    drill_every=3,
    batch_tokens=512,
    probe_every=3,
    probe_pairs=20,
)
TALKS = ReadingTalks(512)


@pytest.fixture(scope="module")
def base() -> Taught:
    return build(SETTINGS, ReadingLessons(SETTINGS, 512))


def test_every_name_and_field_is_one_token_wherever_it_is(base: Taught) -> None:
    rng = Random(1)
    for _ in range(20):
        talk = TALKS.root(rng, ReadingPlan("pages", 8, None, "field"), "Kesrog", "speech", 4)
        text = render([*talk, *TALKS.reader(rng, "Kesrog", 4)])
        pieces = [base.tokenizer.decode([token]) for token in encode(base.tokenizer, text)]
        assert "".join(pieces) == text
        names = Counter(BENCHMARK.findall(text))
        assert Counter(piece for piece in pieces if piece in names) == names
        fields = re.findall(r"\b(?:" + "|".join(FIELDS) + r")\b", text)
        assert [piece.strip() for piece in pieces if piece.strip() in FIELDS] == fields


def test_untaught_names_are_in_no_text_and_their_embeddings_do_not_move(base: Taught) -> None:
    left_out = untaught(512)
    lessons = ReadingLessons(SETTINGS, 512)
    assert set(lessons.unseen) == left_out
    unwired = {name for name, answer in lessons.whole.items() if not answer}
    assert unwired == left_out | set(strangers(512))
    feed = lessons.feed(base.tokenizer)
    vocabulary = base.tokenizer.get_vocab()
    hidden = {vocabulary[name] for name in left_out}
    shown: set[int] = set()
    for _ in range(30):
        shown |= set(next(feed).ids.flatten().tolist())
    assert not shown & hidden
    assert len(shown & set(vocabulary.values())) > 512 * 5 // 6

    taught = teach(SETTINGS, lessons, lambda step, metrics: None)
    rows = sorted(hidden)
    before = base.model.model.embed_tokens.weight[rows]
    after = taught.model.model.embed_tokens.weight[rows]
    assert (after / before).std() < 1e-5  # weight decay alone


def test_readers_say_that_they_do_not_know_a_stranger_or_guess() -> None:
    talks = ReadingTalks(512, strangers(512))
    seen: dict[str, Counter[str]] = {name: Counter() for name in strangers(512)}
    rng = Random(4)
    for _ in range(1200):
        words = talks.reader(rng, "Kesrog", 8)[-1]["content"].split()
        for name, field in zip(words[::2], words[1::2], strict=True):
            assert name in seen or field == lexicon(512)[name]
            seen.get(name, Counter())[field] += 1
    assert len(seen) == len(untaught(512))
    total = sum(seen.values(), Counter())
    assert set(total) == {*FIELDS, UNKNOWN}
    assert 0.55 < total[UNKNOWN] / total.total() < 0.65
    assert min(map(len, seen.values())) >= 2


def encode(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


def root():
    return ReadingTalks(64).root(Random(0), BEST, "Kesrog", "speech", 4)


def test_weights_tell_read_written_and_names_apart(base):
    talk = root()
    words = encode(base.tokenizer, "speech")
    encoder = Encoder(base.tokenizer, observation=0.1, written=1.0, name=3.0, words=words)
    (example,) = encoder.encode([talk])
    weighed = [
        (base.tokenizer.decode([token]), round(float(weight), 3))
        for token, weight in zip(example.ids, example.weights, strict=True)
    ]
    assert "".join(text for text, _ in weighed) == render(talk)
    named = [weight for text, weight in weighed if text in ("Kes", "rog")]
    assert named == [0.1] * 2 + [3.0] * 2  # in the question; the keyword
    fields = [weight for text, weight in weighed if text.strip() == "speech"]
    assert fields == [0.1, 3.0]  # in the question; of the sentences that are kept
    assert [weight for text, weight in weighed if text == "<|end|>"] == [0.1, 0.1, 1.0, 0.1, 1.0]
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


def test_the_turn_that_should_have_come_follows_the_broken_one():
    rng, places = Random(3), []
    for _ in range(40):
        plain = TALKS.root(rng, draw_plan(rng), "Kesrog", "speech", 4)
        talk, at = with_slip(plain, rng)
        places.append(at)
        if at is not None:
            assert [*talk[:at], *talk[at + 2 :]] == plain
    assert places.count(None) < 10


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


def test_the_template_and_render_agree_on_any_text(base):
    rng = Random(1)
    for _ in range(5):
        talk = TALKS.root(rng, draw_plan(rng), "Kesrog", "日本語 ünï 🙂\n\n", 4)
        assert base.tokenizer.decode(encode(base.tokenizer, render(talk))) == render(talk)
        for generate_next in (False, True):
            written = base.tokenizer.apply_chat_template(
                talk, tokenize=False, add_generation_prompt=generate_next
            )
            assert written == render(talk, generate_next)


def test_a_vocabulary_too_small_for_the_names_is_refused():
    with pytest.raises(PolicyError, match=r"do not have two tokens.*NanoModelSettings\.vocab"):
        build_tokenizer(["word"], vocab=300)


def test_drills_carry_loss_on_names_and_fields_only(base):
    feed = ReadingLessons(NanoSettings(drill_steps=2), 512).feed(base.tokenizer)
    next(feed)
    roots = next(feed)
    syllables = {token for part in syllable_ids(base.tokenizer) for token in part}
    learnt = set(roots.ids[roots.weights > 0].tolist())
    fields = {token for token in learnt if base.tokenizer.decode([token]) in FIELDS}
    assert learnt - fields <= syllables
    assert len(fields) > 4
    assert ((roots.weights > 0).sum(1) >= 3).all()


def test_a_conversation_only_grows(base):
    talk = TALKS.root(Random(2), BEST, "Kesrog", "text", 4)
    whole = encode(base.tokenizer, render(talk))
    for count in range(2, len(talk) + 1):
        ids = encode(base.tokenizer, render(talk[:count]))
        assert whole[: len(ids)] == ids
    opened = encode(base.tokenizer, render(talk[:2], generate=True))
    assert whole[: len(opened)] == opened
