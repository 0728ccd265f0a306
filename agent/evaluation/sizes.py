"""F1 by the number of papers, of a model and of lines of code without training.

In the world `fields`, code cannot choose among a method's sentences, and a model that was trained
on few papers must do well on more. `tasks/evaluate.py` plays the episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.evaluation.statistics import Bootstrap
from agent.policies import baselines
from agent.rollouts.trajectory import Trajectory
from env.problems.schema import Problem
from env.problems.store import ProblemStore

LINES: Mapping[str, baselines.Line] = {
    "keyword search, eight sentences": baselines.keyword_search,
    "every sentence of the method": baselines.every_sentence,
}


def by_papers(
    episodes: Sequence[Trajectory], problems: ProblemStore, bootstrap: Bootstrap
) -> list[dict[str, Any]]:
    """A row for each number of papers, from the fewest on.

    Args:
        episodes: greedy episodes; voids are left out.
        problems: their problems with gold.
        bootstrap: intervals over collections.

    Returns:
        `papers`, `n`, `f1` (mean, low, high) and, where problems have candidates, `lines`: the mean
        F1 of each line by name.
    """
    played: dict[int, list[tuple[Problem, float]]] = {}
    for episode in episodes:
        if episode.void is None:
            problem = problems.get(episode.problem_id)
            f1 = episode.metrics.f1 if episode.metrics else 0.0
            played.setdefault(len(problem.papers), []).append((problem, f1))
    rows = []
    for papers, scored in sorted(played.items()):
        asked = [problem for problem, _ in scored]
        collections = [problem.collection_id for problem in asked]
        stats = bootstrap.mean([f1 for _, f1 in scored], collections)
        lines = LINES if all(problem.candidates for problem in asked) else {}
        rows.append(
            {
                "papers": papers,
                "n": stats.n,
                "f1": [stats.mean, stats.low, stats.high],
                "lines": {
                    name: sum(baselines.f1(problem, line(problem)) for problem in asked) / stats.n
                    for name, line in lines.items()
                },
            }
        )
    return rows
