"""Passages and their order: what `rank` returns, in the REPL and outside of it."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.work import calls
from hypothesis import given, settings
from hypothesis import strategies as st

from env import ranking
from env.ranking import passages, rank

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


def test_a_text_without_sentences_is_cut() -> None:
    assert [len(passage) for passage in passages("ab" * 2500)] == [2000, 2000, 1000]


def test_passages_with_the_rarest_words_come_first() -> None:
    found = rank(TEXTS, "Which Kalvot reads maps?", chars=60)
    assert found[0] == ("p1", "Kalvot reads maps at night!")
    assert {text for _, text in found[1:]} == {"| Kalvot | 71 |", WRAPPED}
    assert rank(TEXTS, "Which Kalvot reads maps?", 1, chars=60) == found[:1]


def test_plurals_endings_and_case_do_not_matter_and_common_words_do_not_count() -> None:
    assert rank({"a": "Readers quoted maps."}, "a map that a READER quotes") != []
    assert rank(TEXTS, "What is it that they do?") == []


def test_equal_scores_keep_their_order_and_repeats_of_a_paper_count_once() -> None:
    texts = {"b": "Kalvot is here.\n\nKalvot is here.", "a": "Kalvot is here."}
    assert rank(texts, "Kalvot") == [("b", "Kalvot is here."), ("a", "Kalvot is here.")]


def test_another_order_gets_each_passage_once_and_decides() -> None:
    texts = {"b": "Kalvot is here.\n\nKalvot is here.", "a": "Nobody is here at all."}
    asked: list[Any] = []

    def last_first(text: str, found: list[str]) -> range:
        asked.append((text, found))
        return range(len(found) - 1, -1, -1)

    both = [("a", "Nobody is here at all."), ("b", "Kalvot is here.")]
    assert rank(texts, "Kalvot", order=last_first) == both
    assert rank(texts, "Kalvot", 1, order=last_first) == both[:1]
    assert rank({"a": "short"}, "Kalvot", order=last_first) == []
    assert asked == [("Kalvot", ["Kalvot is here.", "Nobody is here at all."])] * 2


def test_of_too_many_passages_an_order_gets_those_that_share_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranking, "MOST_ORDERED", 3)
    texts = {"a": "\n\n".join([f"Nothing is said, {n}." for n in range(9)] + ["Kalvot says so."])}
    found = rank(texts, "Kalvot", order=lambda text, found: range(len(found)))
    assert found == [("a", "Kalvot says so.")]


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


def test_texts_that_hold_nothing_give_nothing() -> None:
    for documents in ({}, {"a": ""}, {"a": 3}, "", [], "\ud800"):
        assert rank(documents, "Kalvot") == []
    assert rank(TEXTS, "Kalvot", 0) == rank(TEXTS, "Kalvot", -3) == []


@pytest.mark.parametrize(
    "text", ["a" * 200_000, ". " * 100_000, "\n " * 100_000, "cat dog. " * 20_000, "." * 200_000]
)
def test_the_work_grows_with_the_characters(text: str) -> None:
    half = calls(lambda: rank(text[: len(text) // 2], "cat"))
    assert calls(lambda: rank(text, "cat")) < 3 * half + 500
