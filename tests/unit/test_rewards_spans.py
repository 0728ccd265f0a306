"""Locating an answer and comparing it with gold."""

from __future__ import annotations

import pytest

from rewards.settings import RewardSettings
from rewards.spans import (
    RIGHTLY_NOTHING,
    Located,
    frame_score,
    frame_scores,
    locate,
    span_f1,
)
from tests.helpers.work import calls

SETTINGS = RewardSettings(free_misses=1)
PAPERS = {
    "p1": "A study of Filtod.\nKalvot scores 42 on Mirbex.\nKalvot scores 17 on Sevzex.",
    "p2": "On Mirbex, Kalvot gets 58.\nPezmas reaches 94 on Gexzuk.",
}
GOLD = [[("p1", 19, 46)], [("p2", 0, 26)]]


def at(answer: object) -> dict[str, list[tuple[int, int]]]:
    return locate(answer, PAPERS, SETTINGS).retrieved


@pytest.mark.parametrize(
    "answer",
    [
        *(None, True, 7, 10**400, "", ".", {}, [[], [[]]]),
        "Kalvot",  # too short
        "Kalvot got 42 on Mirbex, as reported.",
        "Kalvot scores 42 on\ud800 Mirbex.",
        {"paper_id": ["p1"], "start": 0, "end": 20},
        {"paper_id": "p1", "start": 0, "end": 10**30},
        {"paper_id": "p1", "start": 0, "end": 5},
        {"Kalvot scores 42 on Mirbex.": 1},
    ],
)
def test_what_points_nowhere_is_nothing(answer: object) -> None:
    assert at(answer) == {}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_spoils_the_answer(number: float) -> None:
    gold = PAPERS["p1"][19:46]
    assert at([gold]) != {}
    assert at([gold, number]) == {}
    assert at([gold, {"paper_id": "p1", "start": number, "end": 20}]) == {}


def test_too_many_items_point_at_nothing() -> None:
    gold = PAPERS["p1"][19:46]
    many = [gold, *(f"a made up sentence {i}" for i in range(SETTINGS.max_items))]
    assert at(many) == {}
    assert at([gold] * 5000) == {"p1": [(19, 46)]}


def test_items_that_stand_at_too_many_places_point_at_nothing() -> None:
    papers = {"p1": "a" * 5_000}
    flood = ["a" * n for n in range(12, 12 + SETTINGS.max_items)]
    assert locate(flood, papers, SETTINGS) == Located({}, 0)
    room = 5 * SETTINGS.max_items
    for places, counted in ((room, True), (room + 1, False)):
        short = {"p1": "a" * (places + 19)}
        assert bool(locate(["a" * 20], short, SETTINGS).pieces) == counted


def test_quotes_that_would_be_looked_for_without_end_point_at_nothing() -> None:
    texts = {f"part {n}": "a" * 2_490 for n in range(80)}
    slow = ["a" * (600 - n) + "b" + "a" * 600 for n in range(400)]
    assert locate(slow, texts, SETTINGS, searched_chars=20_000_000) == Located({}, 0)
    parts = texts | {"gold": PAPERS["p1"]}
    evidence = [[("p1", 19, 46)]]
    child = [PAPERS["p1"][19:46]]
    assert frame_score(child, parts, PAPERS, evidence, SETTINGS) == 1.0
    assert frame_score([*child, *slow], parts, PAPERS, evidence, SETTINGS) == 0.0
    gold = "Kalvot scores 42 on Mirbex."
    for more, counted in ((0, True), (1, False)):
        papers = {"p1": gold.ljust(200_000), "p2": "-" * more}
        # 1,000 quotes x 200,000 characters.
        many = [gold, *(f"a made up sentence {n}" for n in range(999))]
        assert bool(locate(many, papers, SETTINGS).pieces) == counted
        named = [{"paper_id": "p1", "text": quote} for quote in many]
        assert locate(named, papers, SETTINGS).retrieved == {"p1": [(0, len(gold))]}


def test_no_evidence_is_an_error_of_the_data() -> None:
    with pytest.raises(ValueError, match="evidence"):
        span_f1({}, [])
    with pytest.raises(ValueError, match="characters"):
        span_f1({}, [[("p1", 5, 5)]])


def test_a_child_is_scored_on_what_it_was_given() -> None:
    gold = PAPERS["p1"][19:46]
    given = {"context": PAPERS["p1"]}
    assert frame_score([gold], given, PAPERS, GOLD, SETTINGS) == 1.0
    assert frame_score([PAPERS["p1"][47:74]], given, PAPERS, GOLD, SETTINGS) == 0.0
    assert frame_score([], given, PAPERS, GOLD, SETTINGS) == 0.0


def test_a_child_whose_context_repeats_gold_without_end_has_no_score() -> None:
    gold = PAPERS["p1"][19:46]
    for times, score in ((50, 1.0), (51, 0.0), (7000, 0.0)):
        given = {"context": f"{gold}|" * times}
        assert frame_score([gold], given, PAPERS, GOLD, SETTINGS) == score


def test_a_childs_texts_too_short_for_a_quote_are_not_searched() -> None:
    given = {str(label): "" for label in range(500)} | {"context": PAPERS["p1"]}
    quotes = [PAPERS["p1"][19:46], *(f"a made up sentence {n}" for n in range(100))]
    assert frame_score(quotes[:1], given, PAPERS, GOLD, SETTINGS) == 1.0
    assert calls(lambda: frame_score(quotes, given, PAPERS, GOLD, SETTINGS)) < 20_000


def test_a_long_quote_at_many_places_is_not_searched_at_each() -> None:
    given = {"context": "a" * 20_000}
    assert locate(["a" * 10_010], given, SETTINGS).retrieved == {"context": [(0, 20_000)]}
    assert locate(["a" * 10_010], given, SETTINGS, searched_chars=20_000_000) == Located({}, 0)
    quote = ["a" * 10_010]
    assert calls(lambda: frame_score(quote, given, PAPERS, GOLD, SETTINGS)) < 10_000


def test_gold_at_many_places_is_not_compared_with_every_quote() -> None:
    marks = [f"a repeated quote|{n:04d}|" for n in range(4000)]
    for n in range(50):
        marks[80 * n] += PAPERS["p1"][19:46] + "|" + PAPERS["p2"][:26]
    given = {"context": "".join(marks)}
    work = calls(lambda: frame_score(["a repeated quote"], given, PAPERS, GOLD, SETTINGS))
    assert work < 20 * len(marks)


def test_children_share_the_limit_of_their_searches() -> None:
    quotes = [PAPERS["p1"][19:46], *(f"a made up sentence {n}" for n in range(79))]
    given = {"context": PAPERS["p1"].ljust(200_000)}
    for children, counted in ((6, True), (7, False)):  # 80 quotes x 200,000 characters each
        played = dict.fromkeys(range(1, children + 1), (quotes, given))
        found = frame_scores(played, PAPERS, GOLD, SETTINGS)
        assert found == dict.fromkeys(played, float(counted))
    assert frame_scores({}, PAPERS, GOLD, SETTINGS) == {}


def test_a_child_without_a_text_has_no_score() -> None:
    """Otherwise a parent could open children whose FINAL([]) is always right."""
    for given in ({}, {"context": ""}, {"a" * 40: "short"}):
        assert frame_scores({1: ([], given)}, PAPERS, GOLD, SETTINGS) == {}


def test_a_child_with_nothing_to_find_is_right_to_find_nothing() -> None:
    given = {"context": PAPERS["p2"][27:]}
    assert frame_score([], given, PAPERS, GOLD, SETTINGS) == RIGHTLY_NOTHING
    assert frame_score([given["context"]], given, PAPERS, GOLD, SETTINGS) == 0.0
