"""Answers without a model: the figures that a model has to beat.

Keywords count by the printed topic, or else by the words that first come to mind. No reading means
to count lines, and to expect an equal share of each topic. The most frequent answer to each kind of
question is known in hindsight.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from random import Random

from tasks.oolong.contexts import ChatLine, topics, world
from tasks.oolong.questions import BY_NAME, LongProblem
from tasks.oolong.solve import solve

Answers = Callable[[Sequence[LongProblem]], list[str]]
"""An answer for each problem of one length."""


def by_keywords(asked: Sequence[LongProblem]) -> list[str]:
    """Count topics by the printed label, else by keywords."""
    answers = []
    for problem in asked:
        rows = [(line.month, line.user, guessed(line, problem.labels)) for line in problem.lines]
        known = [row for row in rows if row[2]]
        answers.append((solve(problem.kind, known, problem.parts) or [""])[0])
    return answers


def without_reading(asked: Sequence[LongProblem]) -> list[str]:
    """Count lines, users and months, and expect an equal share of each topic."""
    answers = []
    for problem in asked:
        lines, user = problem.lines, problem.parts.get("user")
        share = sum(user in (None, line.user) for line in lines) / len(topics())
        totals = Counter(
            line.user if problem.kind == "which user" else line.month for line in lines
        )
        choices = BY_NAME[problem.kind].choices
        if choices is None:
            answers.append(str(round(share)))
        elif problem.kind in ("which user", "which month"):
            answers.append(totals.most_common(1)[0][0])
        else:
            answers.append(choices()[0])
    return answers


def most_frequent(asked: Sequence[LongProblem]) -> list[str]:
    """The most frequent gold of each kind, which only hindsight knows."""
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for problem in asked:
        seen[problem.kind][problem.gold] += 1
    return [seen[problem.kind].most_common(1)[0][0] for problem in asked]


def at_random(asked: Sequence[LongProblem]) -> list[str]:
    """One of the choices; a number up to twice the equal share."""
    answers = []
    for problem in asked:
        rng = Random(f"{problem.context_id}/{problem.kind}")
        choices = BY_NAME[problem.kind].choices
        share = len(problem.lines) // len(topics())
        answers.append(rng.choice(choices()) if choices else str(rng.randint(0, 2 * share)))
    return answers


def guessed(line: ChatLine, labels: bool) -> str:
    """Topic by label or keyword; empty if no keyword occurs, or those of several topics."""
    return line.topic if labels else _by_keyword(line.text)


BASELINES: Mapping[str, Answers] = {
    "keywords": by_keywords,
    "no reading": without_reading,
    "frequent": most_frequent,
    "random": at_random,
}


@cache
def _by_keyword(text: str) -> str:
    words = set(re.findall(r"\w+", text.lower()))
    found = [
        name for name, about in world()["topics"].items() if words.intersection(about["keywords"])
    ]
    return found[0] if len(found) == 1 else ""
