from __future__ import annotations

import pytest

from agent.nano import strategies
from agent.nano.demonstrations import child_conversation, demonstrate, root_conversation
from agent.nano.settings import MixtureSettings, NanoSettings
from agent.nano.tokenizer import END, SPECIAL, build_tokenizer, render, syllable_ids
from agent.nano.warmstart import untaught
from env.problems import names, synthetic
from env.problems.lexicon import lexicon
from env.problems.settings import SyntheticSettings

pytestmark = pytest.mark.xdist_group("transformers")  # so that one process imports it

MIXTURE = MixtureSettings()


@pytest.fixture(scope="module")
def problems():
    return synthetic.generate(SyntheticSettings(collections={"train": 4}))


@pytest.fixture(scope="module")
def tokenizer(problems):
    return untaught(NanoSettings(), problems).tokenizer


def encode(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


def test_every_name_is_two_tokens_and_they_differ(tokenizer):
    pairs = {tuple(encode(tokenizer, name)) for name in names.NAMES}
    assert len(pairs) == len(names.NAMES) == 1600
    assert {len(pair) for pair in pairs} == {2}


@pytest.mark.parametrize("name", [names.NAMES[0], names.NAMES[777], names.NAMES[-1]])
def test_a_name_has_the_same_tokens_everywhere(tokenizer, name):
    other = names.NAMES[5]
    pair = encode(tokenizer, name)
    forms = (*synthetic.QUESTIONS, *names.FACTS, "Find results of {x} for {y}, how far?")
    places = [form.format(x=name, y=other, n=42) for form in forms]
    places += [form.format(x=other, y=name, n=42) for form in forms]
    places += [
        f"A study of {name}.\nOn {name}, it",
        f'search(context, "{name}")',
        f'if "{name}" in x',
        f'(["{name} on {other}"] * len(p)',
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


def test_the_template_and_render_agree(tokenizer, problems):
    for tree in demonstrate(problems, 5, MIXTURE, seed=1):
        for talk in tree.conversations:
            for generate_next in (False, True):
                written = tokenizer.apply_chat_template(
                    talk, tokenize=False, add_generation_prompt=generate_next
                )
                assert written == render(talk, generate_next)


def test_a_conversation_only_grows(tokenizer):
    x, y = names.NAMES[3], names.NAMES[900]
    question = synthetic.QUESTIONS[0].format(x=x, y=y)
    talk = root_conversation(strategies.BEST_ROOT, question, papers=8, hits=3, hint=True)
    whole = encode(tokenizer, render(talk))
    for count in range(2, len(talk) + 1):
        ids = encode(tokenizer, render(talk[:count]))
        assert whole[: len(ids)] == ids
    opened = encode(tokenizer, render(talk[:2], generate=True))
    assert whole[: len(opened)] == opened


def test_a_turn_ends_with_the_end_token(tokenizer):
    talk = child_conversation(strategies.BEST_CHILD, (names.NAMES[1], names.NAMES[2]))
    assert tokenizer.eos_token == END
    assert encode(tokenizer, render(talk))[-1] == tokenizer.eos_token_id
    assert [tokenizer.convert_tokens_to_ids(t) for t in SPECIAL] == list(range(len(SPECIAL)))


def test_a_vocabulary_too_small_for_the_names_is_refused():
    with pytest.raises(ValueError, match="do not have two tokens"):
        build_tokenizer(["word"], vocab=300)


def test_the_vocabulary_stays_within_its_bound(tokenizer):
    assert len(tokenizer) <= NanoSettings().model.vocab


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
