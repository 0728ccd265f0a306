"""Locating an answer and comparing it with gold."""

import pytest

from rewards.settings import RewardSettings
from rewards.spans import Located, locate, span_f1

SETTINGS = RewardSettings(free_misses=1)
PAPERS = {
    "p1": "A study of Filtod.\nKalvot scores 42 on Mirbex.\nKalvot scores 17 on Sevzex.",
    "p2": "On Mirbex, Kalvot gets 58.\nPezmas reaches 94 on Gexzuk.",
}
GOLD = [[("p1", 19, 46)], [("p2", 0, 26)]]


def at(answer: object) -> dict[str, list[tuple[int, int]]]:
    return locate(answer, PAPERS, SETTINGS).retrieved


QUOTE = "Kalvot scores 42 on Mirbex."
PLACE = {"paper_id": "p1", "start": 19, "end": 46}


def test_lists_nested_a_hundred_thousand_deep_are_searched() -> None:
    deep: object = PLACE
    for _ in range(100_000):
        deep = [deep]
    assert at(deep) == {"p1": [(19, 46)]}


NOWHERE = [
    *(None, True, 7, 10**400, "", ".", {}, [[], [[]]]),
    "Kalvot",  # too short
    "Kalvot got 42 on Mirbex, as reported.",
    # gold in another spelling, in a longer text, of another paper or without one
    *(QUOTE.swapcase(), QUOTE.replace("a", "\u0430"), QUOTE.replace("42", "42\ud800")),
    *("\u200b".join(QUOTE), f"It says: {QUOTE}", f"{QUOTE} {PAPERS['p2']}"),
    *({"paper_id": "p2", "text": QUOTE}, {"text": QUOTE}, {QUOTE: 1}, {"answer": [QUOTE]}),
    # places of another type, from the end, swapped, beyond the text, of too few characters
    *({**PLACE, "start": 19.0}, {**PLACE, "start": -54, "end": -27}),
    *({**PLACE, "start": 46, "end": 19}, {**PLACE, "end": 10**30}, {**PLACE, "end": 24}),
    *({**PLACE, "start": False}, {**PLACE, "paper_id": "p9"}, {**PLACE, "paper_id": ["p1"]}),
    *({**PLACE, "text": 7}, ["p1", 19, 46], ["p1", "p2"], ["p2", QUOTE]),
]


@pytest.mark.parametrize("answer", NOWHERE, ids=repr)
def test_what_points_nowhere_is_nothing(answer: object) -> None:
    assert at(answer) == {}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_spoils_the_answer(number: float) -> None:
    assert at([QUOTE]) != {}
    assert at([QUOTE, number]) == {}
    assert at([QUOTE, {"paper_id": "p1", "start": number, "end": 20}]) == {}


def test_items_that_stand_at_too_many_places_point_at_nothing() -> None:
    papers = {"p1": "a" * 5_000}
    flood = ["a" * n for n in range(12, 12 + SETTINGS.max_items)]
    assert locate(flood, papers, SETTINGS) == Located({}, 0)
    room = 5 * SETTINGS.max_items
    for places, counted in ((room, True), (room + 1, False)):
        assert bool(locate(["a" * 20], {"p1": "a" * (places + 19)}, SETTINGS).pieces) == counted


def test_quotes_that_would_be_looked_for_without_end_point_at_nothing() -> None:
    gold = "Kalvot scores 42 on Mirbex."
    for more, counted in ((0, True), (1, False)):
        papers = {"p1": gold.ljust(200_000), "p2": "-" * more}
        # 1,000 quotes x 200,000 characters.
        many = [QUOTE, *(f"a made up sentence {n}" for n in range(999))]
        assert bool(locate(many, papers, SETTINGS).pieces) == counted
        named = [{"paper_id": "p1", "text": quote} for quote in many]
        assert locate(named, papers, SETTINGS).retrieved == {"p1": [(0, len(gold))]}


def test_no_evidence_is_an_error_of_the_data() -> None:
    with pytest.raises(ValueError, match="evidence"):
        span_f1({}, [])
    with pytest.raises(ValueError, match="characters"):
        span_f1({}, [[("p1", 5, 5)]])


def test_a_long_quote_at_many_places_is_not_searched_at_each(monkeypatch) -> None:
    given = {"context": "a" * 20_000}
    assert locate(["a" * 10_010], given, SETTINGS).retrieved == {"context": [(0, 20_000)]}
    monkeypatch.setattr("rewards.spans._SEARCHED_CHARS", 20_000_000)
    assert locate(["a" * 10_010], given, SETTINGS) == Located({}, 0)
