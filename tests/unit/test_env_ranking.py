"""Passages and their order: what `rank` returns, in the REPL and outside of it."""

import pytest
from helpers.work import calls
from hypothesis import given, settings
from hypothesis import strategies as st

from env.passages import passages
from env.ranking import near, rank

LONG = "A first sentence is here. Kalvot reads maps at night! Others, i.e. seven, wait until dawn."
LINE = f"{LONG} It goes on and on, so that the line is long."
WRAPPED = "Kalvot and Mirbex\nwrap their lines,\nas letters do."
TEXTS = {
    "p1": f"1 Results\n{LINE}\n| Kalvot | 71 |\n| x | 5 |",
    "p2": f"{WRAPPED}\n\nShort.\n\nNothing else was tried.",
}


TABLE = "| Berth | Vessel |\n|---|---|\n| 7 | Ostrava |\n| 12 | Calliope, since spring |"


def test_a_paragraph_is_one_passage_up_to_a_length_and_its_sentences_beyond() -> None:
    assert list(passages(LONG, len(LONG), 12)) == [LONG]
    assert list(passages(LONG, 50, 12)) == [
        "A first sentence is here.",
        "Kalvot reads maps at night!",
        "Others, i.e. seven, wait until dawn.",
    ]
    assert list(passages("船已到。明天卸货。", 5, 2)) == ["船已到。", "明天卸货。"]


def test_wrapped_lines_are_one_paragraph_and_long_lines_are_their_own() -> None:
    assert list(passages(TEXTS["p2"], 99, 6)) == [WRAPPED, "Short.", "Nothing else was tried."]
    rows = ["| Kalvot | 71 |", "| x | 5 |"]
    assert list(passages(TEXTS["p1"], 200, 8)) == ["1 Results", LINE, "\n".join(rows)]
    assert list(passages(TEXTS["p1"], 1, 8))[-2:] == rows


def test_a_table_is_whole_up_to_a_length_and_beyond_its_header_counts_for_each_row() -> None:
    assert list(passages(TABLE, len(TABLE), 3)) == [TABLE]
    header, _, *rows = TABLE.split("\n")
    assert list(passages(TABLE, len(TABLE) - 1, 3)) == [header, *rows]
    assert rank({"p": TABLE}, "vessel calliope", 1, chars=1, least=3) == [("p", rows[1])]
    assert ("p", rows[0]) in rank({"p": TABLE}, "vessel", chars=1, least=3)


def test_a_word_that_one_passage_repeats_is_rare() -> None:
    texts = {"a": "Kalvot, Kalvot, Kalvot, Kalvot, Kalvot.", "b": "Here Mirbex.", "c": "Here."}
    assert next(key for key, _ in rank(texts, "Kalvot here", least=3)) == "a"


def test_a_short_piece_joins_what_it_belongs_to() -> None:
    spoken = "Ask for the key at noon. It's red. Nobody else has one of these."
    assert next(iter(passages(spoken, 30, 12))) == "Ask for the key at noon. It's red."
    headed = "Dock\n\nShips lie here in winter.\n\nPIN 8306"
    assert list(passages(headed, 99, 12)) == [headed]
    cells = f"{LINE}\nrate\n0.31\n0.42\n9 of 70\n{LINE}"
    assert list(passages(cells, 200, 6)) == [LINE, "rate\n0.31\n0.42", "9 of 70", LINE]
    assert list(passages("a" + "\n" * 3000 + "b", 99, 12)) == ["a", "b"]


PIECES = [*"aB.?! |-\n\t", "\n\n", "\n|---|\n", "\ud800", "e\u0301", "中", "the cat sat. "]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES)).map("".join), st.integers(1, 40), st.integers(1, 20))
def test_every_passage_is_a_slice_and_none_that_says_something_is_lost(text, chars, least):
    found, at = list(passages(text, chars, least)), 0
    for passage in found:
        at = text.index(passage, at) + len(passage)
        assert passage.strip() == passage
        assert len(passage) >= least or passage == found[-1] == found[0]
    letters = [one for one in text if one.isalnum()]
    assert [one for one in "".join(found) if one.isalnum()] == letters


OBVIOUS = [
    ("fee", "The FEES rise in May."),
    ("library", "Both libraries close early."),
    ("bench", "Three benches stand there."),
    ("scarf", "Two scarves were lost."),
    ("wives", "The fisherman's wife waited."),
    ("hypothesis", "These hypotheses were dropped."),
    ("code 8306", "PIN: 8306"),
    ("café", "The cafe\u0301 opens at nine."),
    ("プランの料金は?", "月額料金は五百円です。"),
    ("退货期限是多久?", "三十天内可以退货。"),
    ("ราคาตั๋ว", "ตั๋วใบละสิบบาท"),
    ("가격", "가격은 만 원입니다."),
    ("Garantie", "Die Garantiezeit endet im Juni."),
    ("Mietvertrag", "Der Vertrag läuft ein Jahr."),
    ("STRASSE", "Die Straße ist gesperrt."),
    ("Who are we?", "We are the crew."),
]


@pytest.mark.parametrize(("asked", "passage"), OBVIOUS)
def test_an_obvious_answer_is_found(asked: str, passage: str) -> None:
    others = ["Nothing else was said.", "天气很好。", "Dann regnet es sehr lange."]
    text = "\n\n".join([others[0], passage, *others[1:]])
    assert rank(text, asked, least=5)[:1] == [("", passage)]
    assert not rank("\n\n".join(others), asked, least=5)


def test_a_word_counts_more_than_its_other_forms_and_compounds_only_without_them() -> None:
    forms = ["The copies lie there.", "The copy lies there.", "The copybook lies there."]
    assert [text for _, text in rank(forms, "Which copies?")] == forms[:2]
    assert rank(forms[2:], "copybooks' copy") == [("", forms[2])]
    words = ["A timetable hangs here.", "Many tables stand here."]
    assert rank(words, "table") == [("", words[1])]
    assert rank(words[:1], "table") == [("", words[0])]


def test_a_long_text_in_parts_is_ranked_as_a_whole() -> None:
    line = "The same line comes again and again, until the end of it all.\n\n"
    text = f"{line * 2000}Kelp grows here.\n\n{line * 2000}Kelp, and kelp!"
    assert [one for _, one in rank(text, "kelp")] == ["Kelp, and kelp!", "Kelp grows here."]


def test_passages_with_the_rarest_words_come_first() -> None:
    found = rank(TEXTS, "Which Kalvot reads maps?", chars=60)
    assert found[0] == ("p1", "Kalvot reads maps at night!")
    assert {text for _, text in found[1:]} == {TEXTS["p1"].split("\n", 2)[2], WRAPPED}
    assert rank(TEXTS, "Which Kalvot reads maps?", 1, chars=60) == found[:1]


def test_a_wrong_call_names_rank() -> None:
    wrong = [(TEXTS, " ", ValueError), (TEXTS, 5, ValueError), (3, "x", TypeError)]
    for documents, text, error in wrong:
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
