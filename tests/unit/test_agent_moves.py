"""Moves: what is drawn can be written as code, and read back from it."""

from itertools import product
from random import Random

import pytest
from pydantic import ValidationError

from agent.demonstrations.moves import Move, code, decisions, draw, parts_of, query_of, shares
from agent.rollouts.trajectory import FrameRecord, Trajectory, TurnRecord
from agent.settings import MovesSettings
from env.prompts import block

WORDS = ["rose", "fell", "level"]
SETTINGS = MovesSettings(
    words=WORDS,
    word_counts=[0, 2],
    near=0.5,
    reads={"nobody": 1, "readers": 1, "children": 1},
    readers=[4],
    children=[1, 2],
)
QUESTION = "How does “red” tea compare with {plain} water in its effect on sleep?"
PARTS = {"intervention": "“red” tea", "comparator": "{plain} water", "outcome": "sleep"}


def taken(move: Move) -> set[str]:
    flags = decisions(block(code(move, SETTINGS.question)), SETTINGS)
    return {name.removeprefix("move/") for name, value in flags.items() if value}


def lines_to_query(move: Move) -> list[str]:
    lines = code(move, SETTINGS.question).split("\n")
    return [line for line in lines if line.startswith(("import", "intervention", "query"))]


def test_a_question_has_parts() -> None:
    assert parts_of(QUESTION, SETTINGS.question) == PARTS
    assert parts_of(f"Find it.\n{QUESTION}\ncontext: 8", SETTINGS.question) == PARTS
    assert parts_of("How does tea help?", SETTINGS.question) is None


@pytest.mark.parametrize("depth", [0, 1])
def test_what_is_drawn_is_read_back(depth: int) -> None:
    rng, seen = Random(0), set[str]()
    for _ in range(300):
        move = draw(rng, SETTINGS, depth)
        expected = {f"part/{name}" for name in move.parts} | {f"word/{w}" for w in move.words}
        expected |= {f"reads/{move.reads}"}
        expected |= {"paper_first"} if move.paper_first else set()
        expected |= {"near"} if move.near else set()
        if move.reads != "children":
            expected |= {f"quoted/{move.quoted}"}
        if move.reads == "readers":
            expected |= {f"shown/{move.shown}"}
        assert taken(move) == expected
        found: dict[str, str] = {}
        exec("\n".join(lines_to_query(move)), {"question": QUESTION}, found)
        assert found["query"] == query_of(move, PARTS)
        seen |= expected
    assert ("paper_first" in seen) == (depth == 0)
    assert ("reads/children" in seen) == (depth == 0)
    assert {f"quoted/{number}" for number in SETTINGS.quoted} <= seen


def test_decisions_are_independent() -> None:
    rng = Random(1)
    moves = [draw(rng, SETTINGS) for _ in range(6000)]
    for who, number in product(SETTINGS.reads, SETTINGS.quoted):
        those = [move.quoted == number for move in moves if move.reads == who]
        assert sum(those) / len(those) == pytest.approx(0.2, abs=0.04)


def test_prose_and_broken_code_decide_nothing() -> None:
    for text in ("I search.", 'query = f"{outcome} +\n', "query = 3\nrank(context, query, 2)"):
        flags = decisions(text, SETTINGS)
        assert not any(v for n, v in flags.items() if n.startswith(("move/part", "move/word")))


def test_rank_without_a_number_is_its_default_and_a_paper_that_is_not_searched_not_chosen() -> None:
    text = "rank(context, question, 1); rank(context, query)\nllm_query(found)\nFINAL(found[:2])"
    flags = decisions(text, SETTINGS)
    assert flags["move/shown/another"] == flags["move/quoted/2"] == 1
    assert flags["move/shown/4"] == flags["move/paper_first"] == 0
    assert decisions(text, SETTINGS.model_copy(update={"readers": [24]}))["move/shown/24"] == 1


def test_shares_are_over_valid_roots() -> None:
    texts = ['query = f"{outcome} rose"\nfound = rank(context, query, 2)', "nothing", "FINAL([])"]
    trees = [
        Trajectory("p", "easy", void=void, frames={0: FrameRecord(0, None, 0, "rlm", [turn])})
        for text, void in zip(texts, (None, None, "connection"), strict=True)
        for turn in [TurnRecord(f"Find.\n{QUESTION}\ncontext: 1 papers", text, "stop")]
    ]
    found = shares(trees, SETTINGS)
    assert found["move/word/rose"] == 0.5
    assert found["move/quoted/2"] == 0.5
    assert shares([], SETTINGS) == {}


def test_settings_name_parts_and_words_that_exist() -> None:
    with pytest.raises(ValidationError, match="'dose' is no part of the question"):
        MovesSettings(parts=[["dose"]])
    with pytest.raises(ValidationError, match="more than the words, 1"):
        MovesSettings(words=["p"], word_counts=[2])
