"""The comparison of arms: the figures of its tables."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.recursion import figure
from benchmarks.recursion.figure import WITHOUT

SIZES = (4, 8)


def row(arm: str, scores: dict[int, list[float]], **more: Any) -> dict[str, Any]:
    answers = [
        {
            "papers": papers,
            "collection": f"c{number}",
            "f1": f1,
            "covered": 0.5,
            "root_tokens": 100,
            "child_tokens": 50,
            "turns": 2,
        }
        for papers, values in scores.items()
        for number, f1 in enumerate(values)
    ]
    costs = {"cpu_s": 1, "sampled_tokens": 1000, "rate": 0.002, "seed": 0}
    valid = {"validation": {"greedy": 0.5}}
    made = {"commit": "b270d2e8c5", "date": "2026-11-20"}
    return {"what": "trained", "arm": arm, "answers": answers, **costs, **valid, **made, **more}


def test_the_rate_with_the_better_validation_score_is_the_arm_s() -> None:
    poor = row("alone", {4: [0.9]}, rate=0.002, validation={"greedy": 0.4})
    good = row("alone", {4: [0.1]}, rate=0.004, validation={"greedy": 0.6})
    assert figure.chosen([poor, good]) == {("alone", 0): good}


def test_differences_are_paired_by_problem_and_against_the_best_arm_of_each_size() -> None:
    recursive = row("recursive", {4: [0.9, 0.5, 0.7], 8: [0.8, 0.8, 0.8]})
    recursive["answers"].pop(0)  # a void episode
    stuffed = row("stuffed", {4: [0.1, 0.4, 0.3], 8: [0.2, 0.2, 0.2]})
    alone = row("alone", {4: [0.0, 0.0, 0.0], 8: [0.5, 0.6, 0.7]})
    found = figure.difference(recursive, stuffed, 4)
    assert found.mean == pytest.approx((0.1 + 0.4) / 2)
    assert found.n == 2
    told = figure.tables([recursive, stuffed, alone], SIZES)
    [line] = [line for line in told.splitlines() if line.startswith("| 0 | 0.25")]
    assert "0.25 [0.10, 0.40] stuffed" in line
    assert "0.20 [0.10, 0.30] alone" in line


def test_a_base_that_was_shown_one_plan_may_be_the_best_agent_alone() -> None:
    recursive = row("recursive", {4: [0.9, 0.9], 8: [0.8, 0.8]})
    alone = row("alone", {4: [0.5, 0.5], 8: [0.1, 0.1]})
    shown = row("alone", {4: [0.4, 0.4], 8: [0.6, 0.6]}, what="demonstrated", plan="pages")
    other = shown | {"seed": 1}
    table = figure.tables([recursive, alone, shown, other], SIZES)
    assert "| 0 | 0.40 [0.40, 0.40] alone | 0.20 [0.20, 0.20] alone: pages |" in table


def test_arms_with_many_names_are_compared_among_themselves() -> None:
    recursive = row("recursive, many names", {4: [0.9, 0.9], 8: [0.8, 0.8]})
    alone = row("alone", {4: [0.8, 0.8], 8: [0.7, 0.7]})
    shown = row(
        "alone, many names", {4: [0.5, 0.5], 8: [0.6, 0.6]}, what="demonstrated", plan="names"
    )
    table = figure.tables([recursive, alone, shown], SIZES)
    assert "| 0 | 0.40 [0.40, 0.40] alone, many names: names | 0.20 [0.20, 0.20]" in table
    assert "[0.10, 0.10] alone |" not in table


def test_the_figure_has_a_line_for_each_seed_and_a_mean_for_each_arm() -> None:
    rows = [row(arm, {4: [0.5, 0.6], 8: [0.4]}, seed=n) for arm in WITHOUT for n in (0, 1)]
    rows[0]["date"] = "2026-11-21"
    drawn = figure.draw(rows, SIZES)
    assert drawn.texts[0].get_text() == "commit b270d2e; 2026-11-21"
    (axes,) = drawn.axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == [arm for arm in figure.STYLES if arm in WITHOUT]
    assert len(axes.lines) == len(WITHOUT) * 3
