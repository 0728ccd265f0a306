"""Lines without training: none reads the world `fields`."""

from __future__ import annotations

from functools import cache
from statistics import fmean

import pytest
from helpers.fields_lines import lines, problems

from agent.policies import baselines
from env.problems.schema import Problem

SIZES = (4, 16)


@cache
def held_out() -> tuple[Problem, ...]:
    return tuple(problems("test", SIZES, 24, 1, seed=1))


@cache
def scores() -> dict[str, dict[int, float]]:
    """Mean F1 of each line by number of papers."""
    every = lines(problems("train", SIZES, 20, 3, seed=1), 512)
    return {
        name: {
            size: fmean(baselines.f1(p, line(p)) for p in held_out() if len(p.papers) == size)
            for size in SIZES
        }
        for name, line in every.items()
    }


KNOWING = ("lexicon in code", "oracle")


@pytest.mark.parametrize("size", SIZES)
def test_no_line_without_the_lexicon_answers(size: int) -> None:
    found = {name: by_size[size] for name, by_size in scores().items() if name not in KNOWING}
    assert len(found) == 5
    assert max(found.values()) < 0.35


def test_the_lexicon_in_code_and_the_oracle_answer_everything() -> None:
    for name in KNOWING:
        assert list(scores()[name].values()) == [1.0, 1.0]


def test_the_search_for_words_quotes_up_to_eight_sentences() -> None:
    for problem in held_out():
        answer = baselines.keyword_search(problem)
        lines = {line for paper in problem.papers for line in paper.text.split("\n")}
        assert 0 < len(answer) <= 8
        assert set(answer) <= lines
