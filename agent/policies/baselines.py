"""Answers without a model: what code finds.

A line maps a problem to its answer and knows question and papers only. `keyword_search` knows
nothing of the world; the others read the questions of the world `fields`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agent.policies.scripted import KEYWORD
from env.problems.fields import read_question, sentences_with
from env.problems.schema import Problem, Span
from rewards.settings import RewardSettings
from rewards.spans import locate, span_f1

Line = Callable[[Problem], Any]
"""Answer to a problem, as a root would pass it to FINAL."""


def f1(problem: Problem, answer: Any) -> float:
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
