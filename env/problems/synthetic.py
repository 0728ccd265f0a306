"""Synthetic problems of the world `names`; `fields.py` and `papers/` generate the others.

In `names`, papers have a few sentences that state the score of model X on data set Y.

A question asks for every sentence with X and Y. Its papers, gold or not, also mention X with
other data sets, Y with other models, and both names in different sentences. A search for one name
is therefore imprecise, while a search for both is exact. Nothing is read from disk; the same
settings give the same bytes in every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from random import Random
from typing import get_args

from env.problems import fields, names, papers
from env.problems.names import FACTS, SCORES, TITLE
from env.problems.schema import Fact, Paper, Problem, Span, Split, make_collection, make_paper
from env.problems.settings import (
    FILLER_NAMES,
    MAX_SENTENCES,
    MIN_SENTENCES,
    SyntheticSettings,
)

QUESTIONS = (
    "What does {x} score on {y}?",
    "How well does {x} do on {y}?",
    "Report {x} on {y}.",
    "Give the score of {x} on {y}.",
    "How good is {x} on {y}?",
    "On {y}, what does {x} get?",
    "Which score does {x} reach on {y}?",
    "For {y}, how well does {x} do?",
)

_NEAR_MISSES = ("both", "model", "data", "model_in_gold", "data_in_gold")
"""Kinds of distractors in the order of use; `both` makes two."""


@dataclass
class _Draft:
    """A collection while it is written: `lines[p]` are the sentences of paper p, without title."""

    rng: Random
    lines: list[list[str]]
    fillers: list[str]
    golds: list[list[tuple[int, str]]] = field(default_factory=list)
    """(paper, sentence) pairs of each question."""

    def sentence(self, x: str, y: str, n: int | None = None) -> str:
        score = self.rng.choice(SCORES) if n is None else n
        return self.wording(FACTS).format(x=x, y=y, n=score)

    def wording(self, forms: Sequence[str]) -> str:
        self.rng.random()  # Unused, but it keeps the problems of each seed unchanged.
        return self.rng.choice(forms)

    def filler(self) -> str:
        return self.rng.choice(self.fillers)


def _by_room(draft: _Draft, papers: Sequence[int]) -> list[int]:
    """Papers with room for another sentence, the emptiest first."""
    free = [p for p in papers if len(draft.lines[p]) < MAX_SENTENCES]
    return sorted(free, key=lambda p: (len(draft.lines[p]), draft.rng.random()))


def _add_gold(draft: _Draft, x: str, y: str, gold: int) -> None:
    """Write one question's gold sentences, each into a different paper."""
    papers = draft.rng.sample(range(len(draft.lines)), gold)
    scores = draft.rng.sample(SCORES, gold)
    draft.golds.append([])
    for p, n in zip(papers, scores, strict=True):
        sentence = draft.sentence(x, y, n)
        draft.lines[p].append(sentence)
        draft.golds[-1].append((p, sentence))


def _add_near_misses(draft: _Draft, question: int, x: str, y: str, count: int) -> None:
    """Write `count` sentences that name x or y, never both."""
    everywhere = range(len(draft.lines))
    gold_papers = [p for p, _ in draft.golds[question]]
    others = [p for p in everywhere if p not in gold_papers]
    used: set[int] = set()
    for kind in cycle(_NEAR_MISSES):
        if count <= 0:
            return
        # Outside gold papers, each near miss gets a different paper while there are any.
        fresh = [p for p in others if p not in used] or others
        wanted = gold_papers if kind.endswith("_in_gold") else fresh
        p = (_by_room(draft, wanted) or _by_room(draft, everywhere))[0]
        used.add(p)
        sentences = []
        if kind in ("both", "model", "model_in_gold"):
            sentences.append(draft.sentence(x, draft.filler()))
        if kind in ("both", "data", "data_in_gold"):
            sentences.append(draft.sentence(draft.filler(), y))
        sentences = sentences[: min(count, MAX_SENTENCES - len(draft.lines[p]))]
        draft.lines[p] += sentences
        count -= len(sentences)


def _write_papers(draft: _Draft) -> tuple[Paper, ...]:
    papers = []
    for i, lines in enumerate(draft.lines):
        wanted = draft.rng.randint(MIN_SENTENCES, MAX_SENTENCES)
        while len(lines) < wanted:
            x, y = draft.rng.sample(draft.fillers, 2)
            lines.append(draft.sentence(x, y))
        draft.rng.shuffle(lines)
        papers.append(make_paper(i + 1, TITLE.format(z=draft.filler()), lines))
    return tuple(papers)


def _facts(papers: Sequence[Paper], golds: Sequence[tuple[int, str]]) -> tuple[Fact, ...]:
    facts = []
    for number, (p, sentence) in enumerate(sorted(golds)):
        start = papers[p].text.index(sentence)
        span = Span(
            paper_id=papers[p].paper_id, start=start, end=start + len(sentence), text=sentence
        )
        facts.append(Fact(fact_id=f"f{number + 1}", spans=(span,)))
    return tuple(facts)


def _write_collection(
    settings: SyntheticSettings, split: Split, difficulty: str, number: int
) -> list[Problem]:
    level = settings.levels[difficulty]
    # Each collection has its own generator, so that adding one changes no other. Python seeds
    # from a string by its SHA-512, independent of the process's hash seed.
    rng = Random(f"{settings.seed}/{split}/{difficulty}/{number}")
    asked = settings.questions_per_collection
    reserved = settings.held_out if split == "test" else 0.0
    chosen = names.choose(rng, 2 * asked + FILLER_NAMES, reserved)
    pairs = [(chosen[2 * q], chosen[2 * q + 1]) for q in range(asked)]
    draft = _Draft(
        rng,
        [[] for _ in range(level.papers)],
        fillers=chosen[2 * asked :],
    )
    for q, (x, y) in enumerate(pairs):
        # Cycles through 1..max_gold over the questions of the level, so that tiers are even.
        _add_gold(draft, x, y, gold=1 + (number * asked + q) % level.max_gold)
    # Near misses come last: gold may be in any paper, they go where there is room.
    for q, (x, y) in enumerate(pairs):
        _add_near_misses(draft, q, x, y, level.distractors)
    papers = _write_papers(draft)
    questions = [draft.wording(QUESTIONS).format(x=x, y=y) for x, y in pairs]
    evidence = [_facts(papers, golds) for golds in draft.golds]
    asked_for = list(zip(questions, evidence, strict=True))
    return make_collection(settings.seed, split, difficulty, number, papers, asked_for)


_WRITERS = {
    "names": _write_collection,
    "papers": papers.write_collection,
    "fields": fields.write_collection,
}


def generate(settings: SyntheticSettings) -> list[Problem]:
    """Problems of all splits and levels, in a fixed order.

    Args:
        settings: the world, sizes, levels and the seed.

    Returns:
        `collections[split] x questions_per_collection` problems for each split and level. Each gold
        span is a whole sentence or table row. In the world `names` a sentence contains both names
        of a question exactly if it is gold for it; `fields.py` and `papers/` document the others.
    """
    write_collection = _WRITERS[settings.world]
    return [
        problem
        for split in get_args(Split)
        for difficulty in settings.levels_of(split)
        for number in range(settings.collections.get(split, 0))
        for problem in write_collection(settings, split, difficulty, number)
    ]
