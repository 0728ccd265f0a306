"""Gold against text: quotes are found, further occurrences are alternatives, faults are named."""

from __future__ import annotations

import pytest
from helpers.quoted import quoted
from hypothesis import given, settings
from hypothesis import strategies as st

from env.problems.schema import Fact, Paper
from tasks.data.align import LocatedQuote, Missing, add_alternatives, fault, locate
from tasks.data.normalise import normalise

GOLD = "Kalvot scores 42 on Mirbex."


def test_every_further_occurrence_is_an_alternative() -> None:
    one = quoted("?", {"p1": f"{GOLD}\n{GOLD}", "p2": f"x {GOLD}"}, ("p1", GOLD))
    spans = add_alternatives(one).evidence[0].spans
    assert [(s.paper_id, s.start) for s in spans] == [("p1", 0), ("p1", len(GOLD) + 1), ("p2", 2)]
    assert fault(add_alternatives(one), 12) is None


def test_facts_with_the_same_alternatives_become_one() -> None:
    both = quoted("?", {"p1": GOLD, "p2": GOLD}, ("p1", GOLD), ("p2", GOLD))
    assert len(add_alternatives(both).evidence) == 1


def test_faults_are_named() -> None:
    good = quoted("?", {"p1": f"{GOLD}\nmore"}, ("p1", GOLD))
    span = good.evidence[0].spans[0]
    assert fault(good, 12) is None
    for change in ({"start": 1, "end": len(GOLD) + 1}, {"paper_id": "p9"}):
        fact = Fact(fact_id="f0", spans=(span.model_copy(update=change),))
        assert "not the gold text" in str(fault(good.model_copy(update={"evidence": (fact,)}), 12))
    assert "shorter than 30" in str(fault(good, 30))
    twice = good.model_copy(update={"papers": good.papers * 2})
    assert "same paper_id" in str(fault(twice, 12))


# --- quotes ---


def find(quote: str, *texts: str, least: float = 92.0) -> LocatedQuote | Missing:
    papers = [Paper(paper_id=f"p{i}", title="", abstract="", text=t) for i, t in enumerate(texts)]
    return locate(quote, papers, least)


def found(quote: str, *texts: str, least: float = 92.0) -> tuple[str, list[str]]:
    """How the quote was found, and the stored texts; each is the paper's own slice."""
    located = find(quote, *texts, least=least)
    assert isinstance(located, LocatedQuote), located
    for one in located.spans:
        assert texts[int(one.paper_id[1:])][one.start : one.end] == one.text
    return located.how, [one.text for one in located.spans]


def test_an_exact_quote_is_found_wherever_it_stands() -> None:
    how, texts = found(GOLD, f"x {GOLD}", f"{GOLD}\n{GOLD}")
    assert (how, texts) == ("exact", [GOLD] * 3)


GARBLED = [
    ("scores 42\non  the\r\n\tset", "scores 42 on the set"),
    ("a repre-\n  sentation of it", "a representation of it"),
    ("a state-of-the-\nart model", "a state-of-the-art model"),
    ("a repre\u00adsentation of it", "a representation of it"),
    ("the \u201cbest\u201d model\u2019s score", 'the "best" model\'s score'),
    ("the ``best'' model", 'the "best" model'),
    ("pages 12\u201314 \u2014 all", "pages 12-14 --- all"),
    ("falls by \u22123 points", "falls by -3 points"),
    ("the \ufb01rst e\ufb03cient \ufb02ow", "the first efficient flow"),
    ("\uff21\uff22\uff23 scores", "ABC scores"),
    ("cafe\u0301 nai\u0308ve", "caf\u00e9 na\u00efve"),
    ("12\u00a0000\u2009points", "12 000 points"),
    ("zero\u200bwidth\ufeff here", "zerowidth here"),
    ("and so on\u2026 then", "and so on... then"),
]


@pytest.mark.parametrize("pair", GARBLED)
def test_what_converters_garble_is_found_in_both_directions(pair: tuple[str, str]) -> None:
    for text, quote in (pair, reversed(pair)):
        assert found(quote, f"Before this. {text} And after.") == ("normalised", [text])


TEXT = "We see it. The proposed method clearly beats every other baseline by a margin. We go on."


def test_a_quote_with_a_slip_is_found_by_whole_words() -> None:
    how, texts = found(
        "The propsed method clearly beats every baseline by a margin.", TEXT, least=90
    )
    assert how == "fuzzy"
    assert texts == ["The proposed method clearly beats every other baseline by a margin."]


PIECES = st.sampled_from(
    [*"ab1 -.,'\n\t\u00ad\ufb01\u0301\u201c\u2026\u4e2d", "e\u0301", "``", "-\n"]
)


@given(st.lists(PIECES, max_size=40).map("".join))
@settings(max_examples=100)
def test_every_normalised_character_leads_back_to_what_it_came_from(text: str) -> None:
    normal = normalise(text)
    previous = 0
    for i in range(len(normal.text)):
        start, end = normal.original(i, i + 1)
        assert previous <= start < end <= len(text)
        previous = start


@given(st.lists(PIECES, min_size=1, max_size=40).map("".join), st.data())
def test_every_slice_of_a_text_is_found_in_it(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    quote = text[start : data.draw(st.integers(start + 1, len(text)))]
    located = find(quote, text)
    if normalise(quote).text.strip():
        assert isinstance(located, LocatedQuote)
        assert all(one.text == text[one.start : one.end] for one in located.spans)
