"""Passages and their order: what `rank` returns, in the REPL and outside of it."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.work import calls
from hypothesis import given, settings
from hypothesis import strategies as st

from env.ranking import near, passages, rank

LONG = "A first sentence is here. Kalvot reads maps at night! Others, i.e. seven, wait until dawn."
LINE = f"{LONG} It goes on and on, so that the line is long."
WRAPPED = "Kalvot and Mirbex\nwrap their lines,\nas letters do."
TEXTS = {
    "p1": f"1 Results\n{LINE}\n| Kalvot | 71 |\n| x | 5 |",
    "p2": f"{WRAPPED}\n\nShort.\n\nNothing else was tried.",
}


def test_a_paragraph_is_one_passage_up_to_a_length_and_its_sentences_beyond() -> None:
    assert list(passages(LONG, chars=len(LONG))) == [LONG]
    assert list(passages(LONG, chars=50)) == [
        "A first sentence is here.",
        "Kalvot reads maps at night!",
        "Others, i.e. seven, wait until dawn.",
    ]


def test_wrapped_lines_are_one_paragraph_and_long_lines_and_rows_are_their_own() -> None:
    assert list(passages(TEXTS["p2"])) == [WRAPPED, "Nothing else was tried."]
    rows = ["| Kalvot | 71 |", "| x | 5 |"]
    assert list(passages(TEXTS["p1"], least=8)) == ["1 Results", LINE, *rows]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([*"aB.?! |\n\t", "\n\n", "\ud800", "é", "the cat sat. "])).map(
        "".join
    ),
    st.integers(1, 40),
    st.integers(1, 20),
)
def test_every_passage_is_a_slice_of_its_text(text: str, chars: int, least: int) -> None:
    for passage in passages(text, chars, least):
        assert passage in text
        assert len(passage) >= least
        assert passage.strip() == passage


def test_passages_with_the_rarest_words_come_first() -> None:
    found = rank(TEXTS, "Which Kalvot reads maps?", chars=60)
    assert found[0] == ("p1", "Kalvot reads maps at night!")
    assert {text for _, text in found[1:]} == {"| Kalvot | 71 |", WRAPPED}
    assert rank(TEXTS, "Which Kalvot reads maps?", 1, chars=60) == found[:1]


@pytest.mark.parametrize("documents", ["Kalvot is here.", ["Kalvot is here.", "No."]])
def test_a_text_or_a_list_of_texts_has_no_id(documents: Any) -> None:
    assert rank(documents, "Kalvot") == [("", "Kalvot is here.")]


@pytest.mark.parametrize(
    ("documents", "text", "error"),
    [
        (TEXTS, "", ValueError),
        (TEXTS, " ", ValueError),
        (TEXTS, 5, ValueError),
        (3, "x", TypeError),
    ],
)
def test_a_wrong_call_names_rank(documents: Any, text: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^rank: "):
        rank(documents, text)


def test_near_takes_what_stands_around_the_first_passage_and_names_a_stranger() -> None:
    text = {"p": "One. Two. Three. Four.", "q": "Two."}
    found = [("p", "Two."), ("q", "Two."), ("p", "Four."), ("p", "One."), ("p", "Gone.")]
    assert near(text, found, 1) == [found[0], found[3]]
    assert near(text, found, 8) == [found[0], found[2], found[3]]
    nested = [("", "ree."), ("", "One. Two. Three."), ("", "Two."), ("", "Four.")]
    assert [near([text["p"]], some, 1) for some in (nested, [])] == [nested, []]
    for documents in (text, 3):
        with pytest.raises((ValueError, TypeError), match=r"^near: "):
            near(documents, [("r", "One.")], 5)


@pytest.mark.parametrize(
    "text", ["a" * 200_000, ". " * 100_000, "\n " * 100_000, "cat dog. " * 20_000, "." * 200_000]
)
def test_the_work_grows_with_the_characters(text: str) -> None:
    half = calls(lambda: rank(text[: len(text) // 2], "cat"))
    assert calls(lambda: rank(text, "cat")) < 3 * half + 500
