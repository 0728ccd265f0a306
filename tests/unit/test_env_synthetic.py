"""The generated small world: invented names, papers of one form, collections independent."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from typing import Any

import pytest

from env.problems import fields
from env.problems.fields import LevelSettings, SyntheticSettings, generate, read_question
from env.problems.names import FACTS
from env.problems.schema import Problem, from_row, to_row

LEVELS: dict[str, LevelSettings] = {
    "easy": LevelSettings(papers=2),
    "hard": LevelSettings(papers=4),
    "double": LevelSettings(papers=8, splits=["validation"]),
}
SETTINGS = SyntheticSettings(
    collections={"train": 24, "validation": 6, "test": 12}, levels=LEVELS, seed=3
)


@cache
def world() -> list[Problem]:
    return generate(SETTINGS)


def test_another_seed_gives_other_papers() -> None:
    other = generate(SETTINGS.model_copy(update={"seed": 4}))
    texts = {paper.text for problem in world() for paper in problem.papers}
    assert not texts & {paper.text for problem in other for paper in problem.papers}


def test_more_collections_leave_the_earlier_ones_as_they_were() -> None:
    more = generate(SETTINGS.model_copy(update={"collections": {"train": 25, "validation": 6}}))
    known = {problem.problem_id: problem for problem in more}
    assert all(known[p.problem_id] == p for p in world() if p.split != "test")


def test_questions_of_a_collection_share_their_papers_and_ask_different_things() -> None:
    collections: dict[str, list[Problem]] = defaultdict(list)
    for problem in world():
        collections[problem.collection_id].append(problem)
    for members in collections.values():
        assert len(members) == SETTINGS.questions_per_collection
        assert len({read_question(problem.question)[0] for problem in members}) == len(members)
        assert all(problem.papers == members[0].papers for problem in members)
    assert len({problem.problem_id for problem in world()}) == len(world())


def test_a_level_is_in_its_splits_alone_and_leaves_the_others_as_they_were() -> None:
    levels = {name: level for name, level in LEVELS.items() if name != "double"}
    without = generate(SETTINGS.model_copy(update={"levels": levels}))
    assert [p for p in world() if p.difficulty != "double"] == without
    assert {p.split for p in world() if p.difficulty == "double"} == {"validation"}
    assert {p.split for p in world() if p.difficulty == "hard"} == {"train", "validation", "test"}


def test_no_sentence_is_nearly_whole_without_its_score() -> None:
    for fact in FACTS:
        sentence = fact.format(x="Kesrog", y="Toxalim", n=42)
        assert max(map(len, re.split("4|2", sentence))) + 1 < 0.95 * len(sentence)


def test_a_row_without_text_is_refused_by_the_name_of_its_column() -> None:
    with pytest.raises(ValueError, match="question"):
        from_row({**to_row(world()[0]), "question": None})


def test_a_question_that_a_later_split_asks_too_is_left_out(monkeypatch):
    settings = SyntheticSettings(collections={"train": 2, "validation": 2, "test": 1})
    write = fields.write_collection
    both = write(settings, "test", "easy", 0)[0].question

    def writer(*args: Any) -> list[Problem]:
        first, *others = write(*args)
        return [first.model_copy(update={"question": both}), *others]

    monkeypatch.setattr(fields, "write_collection", writer)
    problems = fields.generate(settings)
    assert {p.split for p in problems if p.question == both} == {"test"}
    assert {p.split for p in problems} == {"train", "validation", "test"}
