from __future__ import annotations

from random import Random

import pytest

from agent.errors import PolicyError
from agent.nano.plans import BEST, ReadingTalks, draw_plan
from agent.nano.reading import ReadingLessons
from agent.nano.settings import NanoSettings, ReadingMixture
from agent.nano.tokenizer import END, SPECIAL, build_tokenizer, render, syllable_ids
from env.problems import fields, names
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


@pytest.mark.parametrize("name", [names.NAMES[0], names.NAMES[777], names.NAMES[-1]])
def test_a_name_has_the_same_tokens_everywhere(tokenizer, name):
    pair = encode(tokenizer, name)
    forms = (*fields.QUESTIONS, *names.FACTS, "Find results of {x} for {y}, how far?")
    places = [form.format(x=name, y=next(iter(TALKS.fields)), f="text", n=42) for form in forms]
    places += [form.format(x=names.NAMES[5], y=name, f="text", n=42) for form in names.FACTS]
    places += [
        f"A study of {name}.\nOn {name}, it",
        f'search(context, "{name}")',
        f'if "{name}" in x',
        f'(["{name} on speech"] * len(p)',
        f"['{name}', {name}]",
    ]
    for text in places:
        ids = encode(tokenizer, text)
        assert any(ids[i : i + 2] == pair for i in range(len(ids))), text


def test_syllable_ids_are_single_tokens(tokenizer):
    first, second = syllable_ids(tokenizer)
    assert len(set(first)) == len(set(second)) == 40
    assert not set(first) & set(second)
    assert tokenizer.unk_token_id not in {*first, *second}


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


def test_a_turn_ends_with_the_end_token(tokenizer):
    talk = TALKS.child(names.NAMES[1], "text", "field")
    assert tokenizer.eos_token == END
    assert encode(tokenizer, render(talk))[-1] == tokenizer.eos_token_id
    assert [tokenizer.convert_tokens_to_ids(t) for t in SPECIAL] == list(range(len(SPECIAL)))


def test_a_vocabulary_too_small_for_the_names_is_refused():
    with pytest.raises(PolicyError, match=r"do not have two tokens.*warmstart\.nano\.model\.vocab"):
        build_tokenizer(["word"], vocab=300)


def test_the_vocabulary_stays_within_its_bound(tokenizer):
    assert len(tokenizer) <= NanoSettings().model.vocab + len(LESSONS.whole)


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
