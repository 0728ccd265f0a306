"""F1 by the number of papers, of a model and of lines of code without training.

A line maps a problem to its answer and knows question and papers only. `keyword_search` knows
nothing of the world; the others read the questions of the world `fields`, where code cannot choose
among a method's sentences. A model that was trained on few papers must do well on more.
`tasks/evaluate.py` plays the episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent.evaluation.statistics import Bootstrap
from agent.policies.scripted import KEYWORD
from agent.rollouts.trajectory import Trajectory
from env.problems.fields import read_question, sentences_with
from env.problems.schema import Problem, Span
from env.problems.store import ProblemStore
from rewards.settings import RewardSettings
from rewards.spans import locate, span_f1

Line = Callable[[Problem], Any]
"""Answer to a problem, as a root would pass it to FINAL."""


def plain_f1(problem: Problem, answer: Any) -> float:
    """Plain character F1 of an answer, in [0, 1]."""
    located = locate(answer, problem.texts, RewardSettings())
    return span_f1(located.retrieved, problem.places).f1


def _answer(spans: Sequence[Span]) -> list[dict[str, Any]]:
    return [span.model_dump(exclude={"text"}) for span in spans]


def keyword_search(problem: Problem) -> Any:
    """The sentences that match the question's words best, eight at most."""
    answers: list[Any] = []
    scope = {"context": problem.texts, "question": problem.question, "FINAL": answers.append}
    exec(KEYWORD, scope)
    return answers[0]


def every_sentence(problem: Problem) -> Any:
    """Every sentence of the method."""
    return _answer(sentences_with(read_question(problem.question)[0], problem.papers))


def method_and_field(problem: Problem) -> Any:
    """The method's sentences with the word of the field; all of them if none has it."""
    method, field = read_question(problem.question)
    hits = sentences_with(method, problem.papers)
    return _answer([span for span in hits if f"({field})" in span.text] or hits)


LINES: Mapping[str, Line] = {
    "keyword search, eight sentences": keyword_search,
    "every sentence of the method": every_sentence,
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
                    name: sum(plain_f1(problem, line(problem)) for problem in asked) / stats.n
                    for name, line in lines.items()
                },
            }
        )
    return rows
