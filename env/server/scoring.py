"""Scoring of an ended episode: its facts, its turn among other episodes, and who reads how much.

Scoring runs in the interpreter of the server, outside every limit of a cell. Many at once would
make each message of other sessions wait for all of them.

A client without the owner's key reads rounded figures. Exact shares are counts of characters: a few
replays that halve the answer would find the gold. Two digits do not hide a sentence among a few. An
answer that earns nothing therefore has metrics of zero. An answer that earns something contains
little besides gold. Process quality tells how much gold is in what frames were shown or returned,
which may be any part of the papers. Only an answer with all evidence, and nothing else, has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from threading import Condition
from typing import Any

from env.models import AnswerMetrics
from env.problems.schema import Problem
from env.server.tree import Tree
from env.server.tree.frame import texts_of
from rewards.combine import EpisodeFacts
from rewards.components import Work, by_papers, by_sentences
from rewards.found import papers_found
from rewards.papers_read import Lines, papers_read, share
from rewards.settings import RewardSettings

_DIGITS = 2
_WHOLE = 1 - 1e-9
_NOTHING = {"precision": 0.0, "recall": 0.0, "f1": 0.0, "exact_match": False, "paper_f1": 0.0}


def episode_facts(tree: Tree, problem: Problem, settings: RewardSettings) -> EpisodeFacts:
    """Facts that the server received and counted, of a tree that has ended."""
    counters = tree.counters
    return EpisodeFacts(
        papers=tree.papers,
        evidence=problem.places,
        answer=tree.answer,
        answered=tree.answered,
        turns=counters.turns,
        turns_with_error=tree.failed_turns,
        turns_with_one_block=counters.turns - counters.format_errors,
        work=MEASURES[problem.measure](tree, problem, settings),
    )


def _by_papers(tree: Tree, problem: Problem, settings: RewardSettings) -> Work:
    """A paper without evidence is read if it was shown to a frame or given to a child.

    One with evidence is read if a child returned the evidence.
    """
    gold, counters = problem.gold_papers, tree.counters
    texts = [*tree.shown, *(text for frame in tree.children for text in texts_of(frame.context))]
    shown = papers_read(tree.papers, texts, settings.read_chars, gold)
    children = ((f.given, f.answer) for f in tree.children if f.stop_reason == "final")
    found = papers_found(tree.papers, problem.places, children, settings.min_cover)
    used = counters.turns + counters.sub_calls
    return by_papers(tree.papers, problem.places, shown - gold | found, used, settings)


def _by_sentences(tree: Tree, problem: Problem, settings: RewardSettings) -> Work:
    """Sentences that were shown, one a line, and tokens.

    A child's context is not shown until the child prints it or writes it into a prompt.
    """
    candidates = {span.text for span in problem.candidates}
    others = {line for text in tree.papers.values() for line in text.split("\n")} - candidates
    gold = {span.text for fact in problem.evidence for span in fact.spans}
    shown = Lines(gold | others).shown(tree.shown)
    counts = len(problem.candidates), tree.tokens
    return by_sentences(share(gold, shown), share(others, shown), *counts)


MEASURES = {"papers": _by_papers, "sentences": _by_sentences}
"""How the work of an episode is measured, by `Problem.measure`."""


class ScoringTurns:
    """Lets one thread at a time score an episode. Thread-safe.

    The smallest episode and the one that has waited longest take turns. By size alone, a flood of
    small episodes would starve every other. By arrival alone, a few large ones would hold up all.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._waiting: list[tuple[int, int]] = []
        """Size and number of those that wait, in the order of their arrival."""
        self._numbers = count()
        self._busy = False
        self._oldest_next = False

    @contextmanager
    def turn(self, size: int) -> Iterator[None]:
        """Wait for one's turn; `size` is that of the episode, in bytes."""
        with self._changed:
            ticket = size, next(self._numbers)
            self._waiting.append(ticket)
            self._changed.wait_for(lambda: not self._busy and self._next() == ticket)
            self._waiting.remove(ticket)
            self._busy, self._oldest_next = True, not self._oldest_next
        try:
            yield
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _next(self) -> tuple[int, int]:
        return self._waiting[0] if self._oldest_next else min(self._waiting)


def rounded(scored: Mapping[str, Any], process_weight: float) -> dict[str, Any]:
    """The score of an episode in two digits, without what would tell the place of gold.

    Args:
        scored: `reward`, `components` and `metrics` of an observation.
        process_weight: weight of the process quality in the reward.
    """
    components, reward = dict(scored["components"]), scored["reward"]
    primary = components["primary_objective"]
    if primary < _WHOLE:
        reward -= process_weight * components["process_quality"]
        components["process_quality"] = 0.0
    metrics = {**dict(scored["metrics"]), **({} if primary > 0 else _NOTHING)}
    return {
        "reward": round(reward, _DIGITS),
        "components": _two_digits(components),
        "metrics": AnswerMetrics(**_two_digits(metrics)),
    }


def _two_digits(figures: Mapping[Any, Any]) -> dict[Any, Any]:
    return {
        name: round(value, _DIGITS) if isinstance(value, float) else value
        for name, value in figures.items()
    }
