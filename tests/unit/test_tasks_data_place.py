"""Quotes against text: they are found, and further occurrences are alternatives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env.problems.schema import Paper
from tasks.data.place import Located, locate, place
from tasks.data.rows import Candidate, Draft, Place, ProblemBounds, Quotes, RowFault
from tasks.data.texts import normalise

GOLD = "Kalvot scores 42 on Mirbex."


def paper(text: str, number: int = 1) -> Paper:
    return Paper(paper_id=f"p{number}", title="", abstract="", text=text)


def test_every_further_occurrence_is_an_alternative_and_facts_with_the_same_become_one() -> None:
    papers = [paper(f"{GOLD}\n{GOLD}"), paper(f"x {GOLD}", 2)]
    facts = [[Place("evidence", name, GOLD)] for name in ("p1", "p2")]
    placed = place(Draft("f:1", "Who?", papers, facts), ProblemBounds(12, 4), Quotes())
    assert isinstance(placed, Candidate)
    (fact,) = placed.problem.evidence
    assert [(s.paper_id, s.start) for s in fact.spans] == [("p1", 0), ("p1", 28), ("p2", 2)]
    assert (placed.problem.tier, placed.problem.difficulty) == ("focused", "medium")


def find(quote: str, text: str) -> Located:
    """The quote's places; each stored text is the paper's own slice."""
    located = locate(quote, paper(text), {})
    assert all(one.text == text[one.start : one.end] for one in located.spans)
    return located


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
        located = find(quote, f"Before this. {text} And after.")
        assert (located.how, [one.text for one in located.spans]) == ("normalised", [text])


def test_a_quote_that_differs_by_a_letter_is_not_found_and_the_paper_that_has_it_is_named() -> None:
    wrong = GOLD.replace("42", "43")
    papers = {"p1": paper(GOLD), "p2": paper(wrong, 2)}
    with pytest.raises(RowFault, match=r"^the quote is not found$") as caught:
        locate(wrong, papers["p1"], papers)
    assert caught.value.remedy.endswith("; it is in 'p2'")


PIECES = st.sampled_from(
    [*"ab1 -.,'\n\t\u00ad\ufb01\u0301\u201c\u2026\u4e2d", "e\u0301", "``", "-\n"]
)


@given(st.lists(PIECES, min_size=1, max_size=40).map("".join), st.data())
@settings(max_examples=100)
def test_every_slice_of_a_text_is_found_in_it(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    quote = text[start : data.draw(st.integers(start + 1, len(text)))]
    if normalise(quote).text.strip():
        assert find(quote, text).spans
    normal, previous = normalise(text), 0
    for i in range(len(normal.text)):  # each character leads back to what it came from
        start, end = normal.original(i, i + 1)
        assert previous <= start < end <= len(text)
        previous = start
