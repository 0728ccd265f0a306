"""Papers that count as read."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.reading import papers_read

_RNG = Random(0)
LONG = "".join(_RNG.choice("abcdefghij ") for _ in range(1000))
OTHER = "".join(_RNG.choice("klmnopqrst ") for _ in range(1000))
PAPERS = {"long": LONG, "other": OTHER, "short": "Kalvot scores 42 on Mirbex."}


def read(*texts: str) -> frozenset[str]:
    return papers_read(PAPERS, texts, 200)


def test_a_whole_paper_is_read() -> None:
    assert read(LONG) == {"long"}
    assert read(f"before {PAPERS['short']} after") == {"short"}


def test_a_short_paper_counts_only_whole() -> None:
    assert read(PAPERS["short"][:-1]) == frozenset()


def test_two_hundred_contiguous_characters_are_enough_anywhere() -> None:
    for start in (0, 1, 57, 99, 100, 399, 800):
        assert read(f"xx{LONG[start : start + 200]}yy") == {"long"}
        assert read(f"xx{LONG[start : start + 199]}#yy") == frozenset()


def test_pieces_do_not_add_up() -> None:
    assert read(*(LONG[i : i + 150] for i in range(0, 1000, 150))) == frozenset()
    assert read("#".join(LONG[i : i + 150] for i in range(0, 1000, 150))) == frozenset()


def test_one_text_may_hold_several_papers() -> None:
    assert read(LONG[300:600] + OTHER[:250] + PAPERS["short"]) == set(PAPERS)


def test_nothing_shown_is_nothing_read() -> None:
    assert read() == frozenset()
    assert read("") == frozenset()


@settings(max_examples=60, deadline=None)
@given(
    st.text("ab", min_size=1, max_size=60),
    st.lists(st.text("ab", max_size=40), max_size=4),
    st.integers(1, 12),
)
def test_it_agrees_with_the_definition(paper: str, texts: list[str], enough: int) -> None:
    wanted = min(enough, len(paper))
    expected = any(
        paper[i : i + wanted] in text for text in texts for i in range(len(paper) - wanted + 1)
    )
    assert (papers_read({"p": paper}, texts, enough) == {"p"}) == expected


def test_who_reads_gold_has_not_read_the_papers_that_repeat_it() -> None:
    papers = {"gold": LONG, "copy": LONG, "like": LONG[:400] + OTHER[:400], "other": OTHER[400:]}
    assert papers_read(papers, [LONG], 200) == {"gold", "copy", "like"}
    assert papers_read(papers, [LONG], 200, {"gold"}) == {"gold"}
    # Its own part counts as before.
    assert papers_read(papers, [OTHER[50:300]], 200, {"gold"}) == {"like"}
    assert papers_read(papers, [papers["like"]], 200, {"gold"}) == {"gold", "like"}
