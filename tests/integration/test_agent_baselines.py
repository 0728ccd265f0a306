"""Lines without training: none reads the world `fields` unless the fields are printed."""

from __future__ import annotations

from functools import cache
from statistics import fmean

import pytest

from agent.policies import baselines
from env.problems.fields import LevelSettings, SyntheticSettings, generate
from env.problems.schema import Problem

SIZES = (4, 16)
LINES = (baselines.keyword_search, baselines.every_sentence, baselines.method_and_field)


@cache
def held_out() -> tuple[Problem, ...]:
    settings = {
        "collections": {"test": 24},
        "questions_per_collection": 1,
        "levels": {f"papers_{size}": LevelSettings(papers=size) for size in SIZES},
        "seed": 1,
    }
    return tuple(generate(SyntheticSettings.model_validate(settings)))


def mean_f1(line: baselines.Line, size: int) -> float:
    problems = [problem for problem in held_out() if len(problem.papers) == size]
    return fmean(baselines.f1(problem, line(problem)) for problem in problems)


@pytest.mark.parametrize("size", SIZES)
def test_no_line_without_the_lexicon_answers(size: int) -> None:
    assert max(mean_f1(line, size) for line in LINES) < 0.35
