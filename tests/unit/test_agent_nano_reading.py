"""Lessons of the world `fields`: what is taught, what is left out, and what the probe says."""

from __future__ import annotations

import re
from collections import Counter
from random import Random

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from agent.nano.examples import Example
from agent.nano.plans import BEST, UNKNOWN, ReadingPlan, ReadingTalks, draw_plan
from agent.nano.reading import ReadingLessons, _right
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


def test_good_choices_are_frequent_alone_and_rare_together() -> None:
    mixture = ReadingMixture()
    good = [mixture.plan["readers"], mixture.most["all"], mixture.keep["field"]]
    assert min(good) > 0.3
    assert np.prod(good) < 0.2


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


def test_the_probe_is_in_the_metrics_of_its_steps(base: Taught) -> None:
    found: list[dict[str, float]] = []
    lessons = ReadingLessons(SETTINGS, 512)
    teach(SETTINGS, lessons, lambda step, metrics: found.append(dict(metrics)))
    kinds = [f"{kind}_{way}" for kind in ("root", "child") for way in ("greedy", "sampled")]
    assert all(0.0 <= found[-1][f"warmstart/probe_{kind}"] <= 1.0 for kind in kinds)
    assert "warmstart/probe_root_greedy" not in found[0]


def test_an_untaught_model_fails_the_probe(base: Taught) -> None:
    found = dict(ReadingLessons(SETTINGS, 512).probe(base.model, base.tokenizer))
    assert max(found.values()) < 0.3


class CertainModel(torch.nn.Module):
    """Predicts the token that is one more than the last one."""

    def forward(self, input_ids: torch.Tensor) -> object:
        logits = torch.nn.functional.one_hot(input_ids + 1, 20) * 50.0
        return type("Output", (), {"logits": logits})


def test_a_probed_answer_is_right_if_every_token_with_a_weight_is() -> None:
    weights = np.array([0, 1, 1, 0], dtype=np.float32)
    right = Example(np.array([1, 2, 3, 9]), weights)  # the last token has no weight
    wrong = Example(np.array([1, 2, 4, 5]), weights)
    model = CertainModel()  # type: ignore[no-untyped-call]
    assert _right(model, [right]) == pytest.approx((1.0, 1.0))
    assert _right(model, [right, wrong]) == pytest.approx((0.5, 0.5))


def test_answers_are_those_of_the_lexicon() -> None:
    fields = lexicon(512)
    talk = TALKS.reader(Random(2), "Kesrog", 8)
    words = talk[-1]["content"].split()
    names = BENCHMARK.findall(talk[1]["content"])
    assert words == [word for name in names for word in (name, fields[name])]
    assert not set(names) & untaught(512)


def test_the_best_plan_asks_for_four_sentences_of_all() -> None:
    talk = TALKS.root(Random(3), BEST, "Kesrog", "speech", 4)
    assert "s[k:k+4]" in talk[-1]["content"]
    assert "s = s[" not in talk[-1]["content"]


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
