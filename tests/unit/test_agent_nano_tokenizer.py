from __future__ import annotations

from random import Random

import pytest

from agent.errors import PolicyError
from agent.nano.plans import BEST, ReadingTalks, draw_plan
from agent.nano.reading import ReadingLessons
from agent.nano.settings import NanoSettings, ReadingMixture
from agent.nano.tokenizer import build_tokenizer, render
from env.problems import names
from env.problems.lexicon import lexicon

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it

TALKS = ReadingTalks(64)
LESSONS = ReadingLessons(NanoSettings(), 64)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(LESSONS.corpus(), NanoSettings().model.vocab, list(LESSONS.whole))


def encode(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


def test_every_name_is_two_tokens_and_they_differ(tokenizer):
    pairs = {tuple(encode(tokenizer, name)) for name in names.NAMES}
    assert len(pairs) == len(names.NAMES) == 1600
    assert {len(pair) for pair in pairs} == {2}


@pytest.mark.parametrize(
    "text",
    ["", "Plain words, 42 of them.", "tabs\tand  two spaces\n\n", "日本語 ünï 🙂", "x_1=[a,'b']"],
)
def test_any_text_survives_the_round_trip(tokenizer, text):
    assert tokenizer.decode(encode(tokenizer, text)) == text


def test_the_template_and_render_agree(tokenizer):
    rng = Random(1)
    for _ in range(5):
        talk = TALKS.root(rng, draw_plan(rng, ReadingMixture()), names.NAMES[3], "text", 4)
        for generate_next in (False, True):
            written = tokenizer.apply_chat_template(
                talk, tokenize=False, add_generation_prompt=generate_next
            )
            assert written == render(talk, generate_next)


def test_a_conversation_only_grows(tokenizer):
    talk = TALKS.root(Random(2), BEST, names.NAMES[3], "text", 4)
    whole = encode(tokenizer, render(talk))
    for count in range(2, len(talk) + 1):
        ids = encode(tokenizer, render(talk[:count]))
        assert whole[: len(ids)] == ids
    opened = encode(tokenizer, render(talk[:2], generate=True))
    assert whole[: len(opened)] == opened


def test_a_vocabulary_too_small_for_the_names_is_refused():
    with pytest.raises(PolicyError, match=r"do not have two tokens.*warmstart\.nano\.model\.vocab"):
        build_tokenizer(["word"], vocab=300)


def test_whole_names_are_single_tokens_after_all_others():
    listed = list(lexicon(512))
    plain = build_tokenizer(["On word, it"], vocab=600)
    fast = build_tokenizer(["On word, it"], vocab=600, whole=listed)
    assert fast.convert_tokens_to_ids(listed) == list(range(len(plain), len(plain) + 512))
    text = f"On {listed[7]}, Kesrog gets 42.\n{listed[8]} speech "
    ids = encode(fast, text)
    assert fast.decode(ids) == text
    assert {*fast.convert_tokens_to_ids(listed[7:9])} <= {*ids}
    assert encode(fast, "On Kesrog, it") == encode(plain, "On Kesrog, it")
