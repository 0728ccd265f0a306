"""A planned question, and how its near misses are spread over the papers.

Near misses are written after all questions of a collection are planned, so that none becomes
evidence of another question. Neighbours: `asking_results.py` and `asking_claims.py` plan the kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle

from env.problems.papers.plan import Draft, Key, Line, Plan
from env.problems.papers.reader import Section

NearMiss = Callable[[Plan], "tuple[Section, Line] | None"]
"""A statement that looks like gold, for a paper; None where that paper cannot make it."""


@dataclass
class Asked:
    """A planned question."""

    kind: str
    text: str
    keys: tuple[Key, ...]
    """The facts asked for."""
    papers: list[Plan]
    """The gold papers."""
    near: Sequence[NearMiss]
    near_in_gold: bool = True
    """Gold papers may hold the near misses as well."""
    missed: list[tuple[Plan, str]] = field(default_factory=list)
    """The near misses that were written, by paper."""


Kind = Callable[[Draft, int], "Asked | None"]
"""Plans a question with exactly so many gold papers; None if the draft has no room for it."""


def add_near_misses(draft: Draft, asked: Asked) -> None:
    """Write `distractors` near misses, each kind in turn, spread over the papers."""
    others = draft.others(asked.papers)
    gold = list(asked.papers) if asked.near_in_gold else []
    # Beside gold first, then in it: its words must not give away a paper that matters.
    papers = cycle(others[: len(others) // 2 + 1] + gold + others[len(others) // 2 + 1 :])
    left = draft.level.distractors
    for _, plan, miss in zip(range(12 * left), papers, cycle(asked.near), strict=False):
        if left and (made := miss(plan)):
            plan.add(*made)
            asked.missed.append((plan, made[1].text))
            left -= 1
