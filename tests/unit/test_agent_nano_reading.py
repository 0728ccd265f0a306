"""Lessons of the world `fields`: what is taught, what is left out, and what the probe says."""

from __future__ import annotations

import re
from collections import Counter
from random import Random

import pytest
from pydantic import ValidationError

from agent.nano.plans import UNKNOWN, ReadingPlan, ReadingTalks, draw_plan
from agent.nano.reading import ReadingLessons
from agent.nano.settings import NanoModelSettings, NanoSettings, ReadingMixture
from agent.nano.tokenizer import render
from agent.nano.warmstart import Taught, build, teach
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


def test_decisions_follow_their_shares() -> None:
    mixture, rng = ReadingMixture(), Random(0)
    plans = [draw_plan(rng, mixture) for _ in range(4000)]
    kinds = Counter(plan.kind for plan in plans)
    for kind, share in mixture.plan.items():
        assert kinds[kind] / len(plans) == pytest.approx(share, abs=0.03)
    best = sum(plan.kind == "readers" and plan.most is None for plan in plans)
    assert best / len(plans) == pytest.approx(
        mixture.plan["readers"] * mixture.most["all"], abs=0.03
    )


def test_shares_that_do_not_sum_to_1_are_refused() -> None:
    with pytest.raises(ValidationError, match="keep: the shares"):
        ReadingMixture(keep={"field": 0.7})


def test_every_name_and_field_is_one_token_wherever_it_is(base: Taught) -> None:
    rng = Random(1)
    for _ in range(20):
        talk = TALKS.root(rng, ReadingPlan("pages", 8, None, "field"), "Kesrog", "speech", 4)
        text = render([*talk, *TALKS.reader(rng, "Kesrog", 4)])
        pieces = [
            base.tokenizer.decode([token])
            for token in base.tokenizer.encode(text, add_special_tokens=False)
        ]
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


def test_answers_are_those_of_the_lexicon() -> None:
    fields = lexicon(512)
    talk = TALKS.reader(Random(2), "Kesrog", 8)
    words = talk[-1]["content"].split()
    names = BENCHMARK.findall(talk[1]["content"])
    assert words == [word for name in names for word in (name, fields[name])]
    assert not set(names) & untaught(512)


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
