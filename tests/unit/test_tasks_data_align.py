"""Gold against text: quotes are found, further occurrences are alternatives, faults are named."""

from __future__ import annotations

from random import Random
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env.problems.schema import Fact, Paper, Problem, Span
from tasks.data.align import LocatedQuote, Missing, Quotes, add_alternatives, fault, locate
from tasks.data.normalise import normalise

GOLD = "Kalvot scores 42 on Mirbex."


def paper(paper_id: str, text: str) -> Paper:
    return Paper(paper_id=paper_id, title="t", abstract="a", text=text)


def span(paper_id: str, start: int, text: str = GOLD) -> Span:
    return Span(paper_id=paper_id, start=start, end=start + len(text), text=text)


def problem(papers: list[Paper], *facts: list[Span]) -> Problem:
    return Problem(
        problem_id="q",
        collection_id="g",
        split="train",
        difficulty="easy",
        tier="singleton",
        question="?",
        papers=tuple(papers),
        evidence=tuple(Fact(fact_id=f"f{i}", spans=tuple(s)) for i, s in enumerate(facts)),
    )


def test_every_further_occurrence_is_an_alternative() -> None:
    one = problem([paper("p1", f"{GOLD}\n{GOLD}"), paper("p2", f"x {GOLD}")], [span("p1", 0)])
    spans = add_alternatives(one).evidence[0].spans
    assert [(s.paper_id, s.start) for s in spans] == [("p1", 0), ("p1", len(GOLD) + 1), ("p2", 2)]
    assert fault(add_alternatives(one), 12) is None


def test_facts_with_the_same_alternatives_become_one() -> None:
    texts = [paper("p1", GOLD), paper("p2", GOLD)]
    both = problem(texts, [span("p1", 0)], [span("p2", 0)])
    assert len(add_alternatives(both).evidence) == 1


def test_a_complete_problem_stays_as_it_is() -> None:
    whole = problem([paper("p1", GOLD)], [span("p1", 0)])
    assert add_alternatives(whole) is whole


def test_faults_are_named() -> None:
    text = [paper("p1", f"{GOLD}\nmore")]
    assert fault(problem(text, [span("p1", 0)]), 12) is None
    assert "not the gold text" in str(fault(problem(text, [span("p1", 1)]), 12))
    assert "not the gold text" in str(fault(problem(text, [span("p9", 0)]), 12))
    assert "shorter than 30" in str(fault(problem(text, [span("p1", 0)]), 30))
    assert "same paper_id" in str(fault(problem(text * 2, [span("p1", 0)]), 12))


# --- quotes ---


def find(quote: str, *texts: str, least: float = 92.0) -> LocatedQuote | Missing:
    return locate(quote, [paper(f"p{i}", text) for i, text in enumerate(texts)], least)


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


GARBLED = {
    "line breaks": ("scores 42\non  the\r\n\tset", "scores 42 on the set"),
    "a hyphen at a line's end": ("a repre-\n  sentation of it", "a representation of it"),
    "a hyphen that the quote kept": ("a state-of-the-\nart model", "a state-of-the-art model"),
    "a soft hyphen": ("a repre\u00adsentation of it", "a representation of it"),
    "typographic quotes": ("the \u201cbest\u201d model\u2019s score", 'the "best" model\'s score'),
    "quotes of TeX": ("the ``best'' model", 'the "best" model'),
    "dashes": ("pages 12\u201314 \u2014 all", "pages 12-14 --- all"),
    "a minus": ("falls by \u22123 points", "falls by -3 points"),
    "ligatures": ("the \ufb01rst e\ufb03cient \ufb02ow", "the first efficient flow"),
    "full width": ("\uff21\uff22\uff23 scores", "ABC scores"),
    "decomposed letters": ("cafe\u0301 nai\u0308ve", "caf\u00e9 na\u00efve"),
    "no-break and thin spaces": ("12\u00a0000\u2009points", "12 000 points"),
    "invisible characters": ("zero\u200bwidth\ufeff here", "zerowidth here"),
    "an ellipsis": ("and so on\u2026 then", "and so on... then"),
}


@pytest.mark.parametrize("kind", GARBLED)
def test_what_converters_garble_is_found_in_both_directions(kind: str) -> None:
    for text, quote in (GARBLED[kind], reversed(GARBLED[kind])):
        assert found(quote, f"Before this. {text} And after.") == ("normalised", [text])


def test_places_that_differ_in_line_breaks_only_are_alternatives() -> None:
    assert found("one two three", "one two three", "one\ntwo three") == (
        "exact",
        ["one two three", "one\ntwo three"],
    )


TEXT = "We see it. The proposed method clearly beats every other baseline by a margin. We go on."


def test_a_quote_with_a_slip_is_found_by_whole_words() -> None:
    how, texts = found(
        "The propsed method clearly beats every baseline by a margin.", TEXT, least=90
    )
    assert how == "fuzzy"
    assert texts == ["The proposed method clearly beats every other baseline by a margin."]


def test_similarity_is_told_and_bounds_what_is_accepted() -> None:
    quote = "The propsed method clearly beats every baseline by a margin."
    located = find(quote, TEXT, least=90)
    assert isinstance(located, LocatedQuote)
    assert 90 < located.similarity < 97
    missed = find(quote, TEXT, least=97)
    assert isinstance(missed, Missing)
    assert missed.similarity == pytest.approx(located.similarity)
    assert "p0[11:78]" in missed.reason


def test_a_quote_of_something_else_is_missing() -> None:
    missed = find("Nothing like this was ever written anywhere.", TEXT)
    assert isinstance(missed, Missing)
    assert missed.similarity is None
    assert "is not found" in missed.reason


def test_another_number_is_another_fact() -> None:
    missed = find(
        "On the large data set Kalvot scores 43 points.",
        "On the large data set Kalvot scores 42 points.",
    )
    assert isinstance(missed, Missing)
    assert missed.similarity is not None
    assert missed.similarity > 95
    assert "its numbers differ" in missed.reason


def test_a_citation_that_the_quote_left_out_does_no_harm() -> None:
    text = "So the method that was named above [12] beats every other baseline by a margin."
    quote = "the method that was named above beats every other baseline by a margin."
    assert found(quote, text) == ("fuzzy", [text[3:]])


ONE = "It is certain that the first sample was lost on its long way to us."
TWO = "It is certain that the third sample was lost on its long way to us."
NEAR = "It is certain that the sample was lost on its long way to us."


@pytest.mark.parametrize("texts", [(f"{ONE} {TWO}",), (ONE, TWO)])
def test_two_places_that_are_about_as_near_are_ambiguous(texts: tuple[str, ...]) -> None:
    missed = find(NEAR, *texts)
    assert isinstance(missed, Missing)
    assert "ambiguous" in missed.reason
    assert "first" in missed.reason
    assert "third" in missed.reason


def test_two_places_with_equal_texts_are_alternatives() -> None:
    assert found(
        NEAR, f"{ONE} And once more: {ONE}", TWO.replace("third", "one and only other")
    ) == (
        "fuzzy",
        [ONE, ONE],
    )


def test_a_blank_quote_is_missing() -> None:
    assert isinstance(find(" \n", TEXT), Missing)


def test_quotes_are_counted_by_how_they_were_found() -> None:
    outcomes = [find(GOLD, GOLD), find("a b", "a\nb"), find(ONE[:-4] + ".", ONE), find("zzzz", ONE)]
    counted = Quotes.count(outcomes)
    assert (counted.exact, counted.normalised, counted.fuzzy, counted.rejected) == (1, 1, 1, 1)
    assert counted.lowest_similarity is not None
    assert 92 < counted.lowest_similarity < 100
    assert Quotes.count([]).lowest_similarity is None


PIECES = st.sampled_from(
    [
        *"ab1 -.,'\n\t",
        "\u00ad",
        "\ufb01",
        "e\u0301",
        "\u0301",
        "\u201c",
        "``",
        "-\n",
        "\u2026",
        "\u4e2d",
    ]
)


@given(st.lists(PIECES, max_size=40).map("".join))
@settings(max_examples=300)
def test_every_normalised_character_leads_back_to_what_it_came_from(text: str) -> None:
    normal = normalise(text)
    previous = 0
    for i in range(len(normal.text)):
        start, end = normal.original(i, i + 1)
        assert previous <= start < end <= len(text)
        previous = start


@given(st.lists(PIECES, min_size=1, max_size=40).map("".join), st.data())
@settings(max_examples=200)
def test_every_slice_of_a_text_is_found_in_it(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    quote = text[start : data.draw(st.integers(start + 1, len(text)))]
    located = find(quote, text)
    if normalise(quote).text.strip():
        assert isinstance(located, LocatedQuote)
        assert all(one.text == text[one.start : one.end] for one in located.spans)


def test_ten_long_papers_are_searched_quickly() -> None:
    rng = Random(0)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(3000)]
    papers = [paper(f"p{i}", " ".join(rng.choices(words, k=9500))) for i in range(10)]
    assert all(len(one.text) > 55_000 for one in papers)
    quote = papers[7].text[30_000:30_200]
    for one in papers:
        normalise(one.text)  # each paper once, however many quotes
    began = process_time()
    located = locate(quote[:90] + "xx" + quote[92:], papers, 92.0)
    took = process_time() - began
    assert isinstance(located, LocatedQuote)
    assert located.how == "fuzzy"
    assert took < 0.5  # measured 0.01; the limit is for a busy machine
