"""Questions in made-up words: names in their order, everything else as it was."""

from __future__ import annotations

import re
from random import Random

import pytest

from agent.nano import drills
from agent.nano.demonstrations import names_of
from agent.nano.settings import MixtureSettings
from agent.nano.wording import made_up, with_words
from env.problems.synthetic import HELD_OUT_QUESTIONS, QUESTIONS

ASKED = "On Kesrog, what does Toxlim get?"


def test_the_names_keep_their_order():
    for seed in range(200):
        assert names_of(made_up(ASKED, Random(seed))) == ("Kesrog", "Toxlim")


def test_a_question_without_names_is_refused():
    with pytest.raises(ValueError, match="two names"):
        made_up("What does it score?", Random(0))


def test_only_the_question_changes():
    for seed in range(50):
        talk = drills.root_binding(Random(seed), MixtureSettings())
        changed = with_words(talk, Random(seed))
        question, *rest = talk[1]["content"].split("\n")
        other, *same = changed[1]["content"].split("\n")
        assert other != question
        assert same == rest
        assert [talk[0], *talk[2:]] == [changed[0], *changed[2:]]


def test_words_of_the_held_out_wordings_come_by_chance_alone():
    def words(texts):
        return {word for text in texts for word in re.findall(r"\b[a-z]{4,}\b", text.lower())}

    held_out = words(HELD_OUT_QUESTIONS) - words(QUESTIONS)
    assert held_out
    assert not held_out & words(made_up(ASKED, Random(seed)) for seed in range(2000))


def test_no_two_are_alike():
    assert len({made_up(ASKED, Random(seed)) for seed in range(200)}) > 190
