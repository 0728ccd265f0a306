"""Splits by collection: what belongs together, how it falls, and the proof that nothing leaks."""

import json
from pathlib import Path
from random import Random

import pytest
from helpers.quoted import quoted
from hypothesis import given, settings
from hypothesis import strategies as st

from env.errors import SourceError
from env.problems.schema import SPLITS, Problem, Split
from tasks.data.rows import Candidate
from tasks.data.settings import SplitSettings
from tasks.data.split import collections, deal, leaks
from tasks.data.texts import question_key, sentences

SETTINGS = SplitSettings()


def text(topic: str, lines: int = 6) -> str:
    return "\n".join(f"The sentence number {i} is about {topic} alone." for i in range(lines))


def problem(
    name: str, *texts: str, question: str = "", collection: str = "", split: Split = "train"
) -> Problem:
    papers = {f"p{i}": one for i, one in enumerate(texts or (text(name),))}
    asked = question or f"{name} {name[::-1]} {name * 2}?"
    named = {"problem_id": name, "collection_id": collection or name, "split": split}
    return quoted(asked, papers, ("p0", papers["p0"][:20])).model_copy(update=named)


def candidates(problems: list[Problem], given: bool = False) -> list[Candidate]:
    rows = enumerate(problems, start=1)
    return [Candidate(f"f:{i}", one, one.split if given else None) for i, one in rows]


def many(count: int) -> list[Problem]:
    rng = Random(7)
    return [problem("".join(rng.choices("abcdefghijklmnop", k=12))) for _ in range(count)]


# --- what belongs together ---

HALF = text("kalvot")[: len(text("kalvot")) // 2] + "\n" + text("something else", 3)
RELATED = {
    "the same paper": (problem("one", text("x")), problem("two", text("y"), text("x"))),
    "an excerpt of a paper": (problem("one", text("x", 9)), problem("two", text("x", 4))),
    "half of the sentences": (problem("one", text("kalvot")), problem("two", HALF)),
    "other line breaks and letters' case": (
        problem("one", text("x")),
        problem("two", text("x").replace(" ", "  ").upper()),
    ),
    "the same question": (problem("one", question="Who?"), problem("two", question="Who?")),
    "nearly the same question": (
        problem("one", question="What does the best of all models score on this set?"),
        problem("two", question="What did the best of all models score on this set?"),
    ),
    "the same collection": (problem("one", collection="g"), problem("two", collection="g")),
}


@pytest.mark.parametrize("kind", RELATED)
def test_related_problems_are_one_collection_and_leak_between_splits(kind: str) -> None:
    one, two = RELATED[kind]
    assert collections([one, two], SETTINGS) == [0, 0]
    assert leaks([one, two], SETTINGS) == []
    (leak,) = leaks([two.model_copy(update={"split": "test"}), one], SETTINGS)
    assert (leak.first, leak.second) == ("one", "two")
    assert 0.5 <= leak.similarity <= 1


def test_unrelated_problems_are_not() -> None:
    one = problem("one", text("x", 4) + "\n" + text("y", 6))
    two = problem("two", text("y", 12) + "\n" + text("z", 12), split="test")
    assert leaks([one, two], SplitSettings(similar_papers=0.7)) == []
    asked = [problem("three", question="Who scores 12?"), problem("four", question="Who wins?")]
    assert collections(asked, SETTINGS) == [0, 1]


def test_relations_reach_over_any_number_of_steps() -> None:
    chain = [problem(f"p{i}{'xyz'[i % 3] * i}", text(f"t{i}"), text(f"t{i + 1}")) for i in range(6)]
    assert collections(chain, SETTINGS) == [0] * 6


WORDS = st.lists(st.integers(0, 9), min_size=0, max_size=6)


@given(st.lists(WORDS, min_size=2, max_size=6), st.sampled_from([0.3, 0.5, 0.8, 1.0]))
@settings(max_examples=60, deadline=None)
def test_no_pair_of_similar_papers_is_missed(drawn: list[list[int]], least: float) -> None:
    texts = [
        "\n".join(
            [f"An opening of its own: {i}.", *(f"A sentence of the kind {n}." for n in kinds)]
        )
        for i, kinds in enumerate(drawn)
    ]
    problems = [problem(chr(97 + i) * 9, one) for i, one in enumerate(texts)]
    sets = [sentences(one) for one in texts]
    for i, one in enumerate(sets):
        for j, two in enumerate(sets[:i]):
            pair = [problems[j], problems[i].model_copy(update={"split": "test"})]
            found = leaks(pair, SplitSettings(similar_papers=least))
            assert bool(found) == (len(one & two) / min(len(one), len(two)) >= least), (one, two)


# --- how collections fall ---


def test_collections_fall_by_their_shares_and_a_further_row_moves_no_other() -> None:
    problems = many(600)
    dealt, rejected = deal(candidates(problems), SETTINGS)
    assert rejected == []
    counts = {split: sum(one.split == split for one in dealt) / 600 for split in SPLITS}
    assert counts["validation"] == pytest.approx(0.1, abs=0.04)
    assert counts["test"] == pytest.approx(0.2, abs=0.05)
    assert deal(candidates(problems[:-1]), SETTINGS)[0] == dealt[:-1]


def test_what_was_dealt_does_not_leak_and_a_collection_has_one_name() -> None:
    problems = many(30) + [pair[i] for pair in RELATED.values() for i in (0, 1)]
    named = [one.model_copy(update={"problem_id": f"{i:02}"}) for i, one in enumerate(problems)]
    dealt, _ = deal(candidates(named), SETTINGS)
    assert leaks(dealt, SETTINGS) == []
    assert len({one.collection_id for one in dealt}) == len(set(collections(named, SETTINGS)))


def test_repeated_ids_and_questions_are_rejected() -> None:
    one, two, *others = many(5)
    again = two.model_copy(update={"question": one.question, "papers": one.papers})
    named = two.model_copy(update={"problem_id": one.problem_id})
    dealt, rejected = deal(candidates([one, again, named, *others]), SETTINGS)
    assert [p.problem_id for p in dealt] == [p.problem_id for p in (one, *others)]
    told = [(fault.row, fault.field) for fault in rejected]
    assert told == [("f:2", "question"), ("f:3", "problem_id")]
    other_papers = [problem(name, question="Who?") for name in ("one", "two")]
    assert deal(candidates(other_papers), SETTINGS)[1] == []


def test_what_was_trained_on_is_never_tested_when_its_collection_grows(tmp_path: Path) -> None:
    first = many(60)
    before, _ = deal(candidates(first), SETTINGS)
    trained = {one.problem_id for one in before if one.split == "train"}
    # A further question about each paper; an id that comes first renames the collection.
    more = [
        problem(name[::-1], one.papers[0].text, question=f"More on {name}?")
        for one in first
        for name in [one.problem_id]
    ]

    def tested(settings: SplitSettings) -> set[str]:
        dealt, rejected = deal(candidates([*first, *more]), settings)
        assert rejected == []
        assert {one.split for one in dealt} == set(SPLITS)
        return {one.problem_id for one in dealt if one.split != "train"}

    assert tested(SETTINGS) & trained
    known = tmp_path / "trained.json"
    keys = [question_key(one.question) for one in first if one.problem_id in trained]
    known.write_text(json.dumps(keys))
    assert not tested(SplitSettings(trained=str(known))) & trained


def test_a_row_that_was_trained_on_and_says_test_is_rejected(tmp_path: Path) -> None:
    problems = [
        problem("one", split="test"),
        problem("two", text("x"), split="test"),
        problem("three", text("x"), split="test"),
        problem("four", split="train"),
    ]
    known = tmp_path / "trained.json"
    known.write_text(json.dumps([question_key(problems[i].question.upper()) for i in (1, 3)]))
    dealt, rejected = deal(candidates(problems, given=True), SplitSettings(trained=str(known)))
    assert [one.problem_id for one in dealt] == ["one", "four"]
    assert [fault.row for fault in rejected] == ["f:2", "f:3"]
    assert all("was trained on its collection" in fault.reason for fault in rejected)


@pytest.mark.parametrize("holds", [None, "{", "3"])
def test_a_list_of_trained_questions_that_cannot_be_read_is_said(tmp_path, holds):
    known = tmp_path / "trained.json"
    if holds is not None:
        known.write_text(holds)
    with pytest.raises(SourceError, match=r"not a JSON list .*prepare\.splits\.trained"):
        deal(candidates(many(3)), SplitSettings(trained=str(known)))


@pytest.mark.parametrize("count", range(3, 12))
def test_every_split_gets_a_collection_when_there_are_three(count: int) -> None:
    dealt, _ = deal(candidates(many(count)), SETTINGS)
    assert {one.split for one in dealt} == set(SPLITS)


def test_a_large_collection_trains() -> None:
    shared = text("shared")
    names = [f"{chr(97 + i) * 8}" for i in range(12)]
    for seed in range(20):
        large = [problem(name, shared) for name in names]
        dealt, _ = deal(candidates([*large, *many(5)]), SplitSettings(seed=seed))
        assert {one.split for one in dealt[:12]} == {"train"}


def test_questions_about_one_folder_are_split_with_the_documents_that_they_quote() -> None:
    named = {name: text(name) for name in ("kalvot", "mirbex", "tower", "bridge", "spare", "other")}
    asked = {"kalvot": 61, "mirbex": 26, "tower": 25, "bridge": 16}
    folder = [
        problem(f"{name}{i}", text_of, *(named[other] for other in named if other != name))
        for name, text_of in named.items()
        for i in range(asked.get(name, 0))
    ]
    assert len(set(collections(folder, SETTINGS))) == 1
    dealt, rejected = deal(candidates(folder), SETTINGS)
    assert rejected == []
    assert leaks(dealt, SETTINGS) == []
    assert [sum(one.split == split for one in dealt) for split in SPLITS] == [77, 26, 25]
    assert len({one.collection_id for one in dealt}) == len(asked)
    assert {paper.text for one in dealt for paper in one.papers} == set(named.values())


# --- splits that the rows name ---


def test_rows_that_share_something_with_an_earlier_split_are_rejected() -> None:
    problems = [
        problem("one", text("x")),
        problem("two", text("x"), split="validation"),
        problem("three", text("x"), text("y"), split="test"),
        problem("four", text("y"), split="validation"),
        problem("five", text("z"), split="test"),
    ]
    dealt, rejected = deal(candidates(problems, given=True), SETTINGS)
    # `three` goes because of train, so that `four` has nothing left in common with test.
    assert [one.problem_id for one in dealt] == ["one", "four", "five"]
    assert [fault.row for fault in rejected] == ["f:2", "f:3"]
    assert all("shares a paper" in fault.reason and "f:1" in fault.reason for fault in rejected)
    assert leaks(dealt, SETTINGS) == []
