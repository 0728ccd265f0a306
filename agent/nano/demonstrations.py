"""Demonstration trees: the strategies of `strategies.py`, played without a server.

A few lines replace the REPL, since only these fixed programs are played. A test replays a sample on
the real environment and asserts the same conversations and F1. Trees are neither graded nor
filtered, because the mixture is meant to be mediocre.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from agent.nano import strategies
from agent.nano.settings import MixtureSettings
from agent.nano.strategies import ChildPlan, RootPlan
from env import prompts
from env.problems import names
from env.problems.schema import Problem
from env.settings import LimitSettings

Conversation = list[dict[str, str]]
PaperLine = tuple[str, str]
"""(paper_id, a whole line, which is one sentence)."""

_NAMES = frozenset(names.NAMES)
_WORD = re.compile(r"[A-Za-z]+")
_LIMITS = LimitSettings()
"""Placeholder: compact prompts name no limit, and the observations here are never cut."""


@dataclass(frozen=True)
class DemonstrationTree:
    """A played tree."""

    problem_id: str
    root: RootPlan
    conversations: list[Conversation]
    """The root's conversation, then each child's."""
    f1: float


def names_of(question: str) -> tuple[str, str]:
    """The two names of a question, in order.

    Raises:
        ValueError: the question does not contain two names.
    """
    found = [word for word in _WORD.findall(question) if word in _NAMES]
    if len(found) != 2:
        raise ValueError(f"{question!r} does not contain two names of the synthetic world")
    return found[0], found[1]


def line_f1(found: Iterable[PaperLine], gold: Iterable[PaperLine]) -> float:
    """Character F1 over whole lines."""
    found, gold = set(found), set(gold)
    right = sum(len(text) for _, text in found & gold)
    if not right:
        return 0.0
    return 2 * right / (sum(len(t) for _, t in found) + sum(len(t) for _, t in gold))


def play(problem: Problem, root: RootPlan, children: Sequence[ChildPlan]) -> DemonstrationTree:
    """Play a tree: two turns of the root and one of each child.

    Args:
        problem: papers and question; only `DemonstrationTree.f1` uses its gold.
        root: the root's decisions.
        children: decisions of the children in order; more than needed are allowed.
    """
    x, y = names_of(problem.question)
    keyword, other = strategies.in_order(root, (x, y))
    hits = [paper for paper in problem.papers if keyword in paper.text]
    chosen = [p for p in hits if not root.filter_papers or other in p.text][: root.papers]
    hint = problem.difficulty == "easy"
    prompted = strategies.child_names(root.prompt, x, y)
    conversations = [
        root_conversation(root, problem.question, len(problem.papers), len(hits), hint)
    ]
    answer: list[PaperLine] = []
    if root.alone:
        reader = ChildPlan(root.keyword_first, root.alone)
        answer = [(p.paper_id, text) for p in chosen for text in _kept(reader, (x, y), p.text)]
        answer = answer[:1] if root.alone == "one" else answer
        children = []
    for number, (paper, plan) in enumerate(zip(chosen, children, strict=False)):
        conversations.append(child_conversation(plan, prompted))
        if number == 0 or root.merge_all:
            answer += [(paper.paper_id, text) for text in _kept(plan, prompted, paper.text)]
    gold = [(span.paper_id, span.text) for fact in problem.evidence for span in fact.spans]
    return DemonstrationTree(problem.problem_id, root, conversations, line_f1(answer, gold))


def root_conversation(
    plan: RootPlan, question: str, papers: int, hits: int, hint: bool
) -> Conversation:
    """Conversation of a root; `hits` is the number that its search prints."""
    x, y = names_of(question)
    opening = prompts.root_messages("compact", _LIMITS, 0, question, papers, hint)
    return [
        *(message.model_dump() for message in opening),
        {"role": "assistant", "content": strategies.root_search(plan, x, y)},
        {"role": "user", "content": prompts.cell_message(f"{hits}\n", 0, ["h"], "", _LIMITS)},
        {"role": "assistant", "content": strategies.root_ask(plan, x, y)},
    ]


def child_conversation(plan: ChildPlan, prompted: Sequence[str]) -> Conversation:
    """Conversation of a child whose prompt contains the names `prompted`."""
    opening = prompts.child_messages("compact", _LIMITS, 0, " on ".join(prompted), "")
    return [
        *(message.model_dump() for message in opening),
        {"role": "assistant", "content": strategies.child_turn(plan, prompted)},
    ]


def _kept(plan: ChildPlan, prompted: Sequence[str], text: str) -> list[str]:
    """The lines of a child's answer."""
    lines = text.split("\n")
    if plan.keep == "whole":
        return lines
    keyword, other = strategies.in_order(plan, prompted)
    hits = [line for line in lines if keyword in line]
    if plan.keep == "other":
        return [line for line in hits if other in line]
    return hits[:1] if plan.keep == "one" else hits


def demonstrate(
    problems: Sequence[Problem], trees: int, mixture: MixtureSettings, seed: int
) -> Iterator[DemonstrationTree]:
    """Trees on problems in shuffled rounds, with independent decisions."""
    rng = Random(f"demonstrations/{seed}")
    order: list[Problem] = []
    for _ in range(trees):
        if not order:
            order = rng.sample(problems, len(problems))
        root = strategies.draw_root(rng, mixture)
        prompted = len(strategies.child_names(root.prompt, "", ""))
        children = [strategies.draw_child(rng, mixture, prompted) for _ in range(root.papers)]
        yield play(order.pop(), root, children)
