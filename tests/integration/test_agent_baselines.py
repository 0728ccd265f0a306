"""Lines without training, which don't read the world `fields`, and F1 by the number of papers."""

from __future__ import annotations

from functools import cache
from statistics import fmean

import pytest

from agent.evaluation import sizes
from agent.evaluation.statistics import Bootstrap
from agent.rollouts.trajectory import Trajectory
from env.models import AnswerMetrics
from env.problems.fields import LevelSettings, SyntheticSettings, generate
from env.problems.schema import Problem
from env.problems.store import ProblemStore

SIZES = (4, 16)
LINES = (sizes.keyword_search, sizes.every_sentence, sizes.method_and_field)


def world(collections: int, levels: dict[str, int], seed: int = 0) -> SyntheticSettings:
    return SyntheticSettings.model_validate(
        {
            "collections": {"test": collections},
            "questions_per_collection": 1,
            "levels": {name: LevelSettings(papers=papers) for name, papers in levels.items()},
            "seed": seed,
        }
    )


@cache
def held_out() -> tuple[Problem, ...]:
    return tuple(generate(world(24, {f"papers_{size}": size for size in SIZES}, seed=1)))


def mean_f1(line: sizes.Line, size: int) -> float:
    problems = [problem for problem in held_out() if len(problem.papers) == size]
    return fmean(sizes.plain_f1(problem, line(problem)) for problem in problems)


@pytest.mark.parametrize("size", SIZES)
def test_no_line_without_the_lexicon_answers(size: int) -> None:
    assert max(mean_f1(line, size) for line in LINES) < 0.35


def test_each_number_of_papers_has_the_model_s_mean_and_that_of_each_line():
    store = ProblemStore.generate(world(3, {"many": 16, "few": 4}))
    episodes = []
    for level, f1 in {"many": 0.5, "few": 1.0}.items():
        for problem_id in store.ids("test", level):
            tree = Trajectory(problem_id, level)
            tree.metrics = AnswerMetrics(precision=f1, recall=f1, f1=f1)
            episodes.append(tree)
    episodes[0].metrics = None  # a root without an answer
    episodes.append(Trajectory(episodes[1].problem_id, "many", void="connection: lost"))
    few, many = sizes.by_papers(episodes, store, Bootstrap(200, 0))
    assert [(row["papers"], row["n"]) for row in (few, many)] == [(4, 3), (16, 3)]
    assert few["f1"] == [1.0, 1.0, 1.0]
    assert many["f1"][0] == pytest.approx(1 / 3)
    for row in (few, many):
        assert row["lines"]["every sentence of the method"] == pytest.approx(0.25, abs=0.06)
        assert 0 < row["lines"]["keyword search, eight sentences"] < 0.4
