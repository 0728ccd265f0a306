"""The world of whole papers: problems for real models.

A collection is a small research field (`field.py`) about which papers of hundreds to thousands of
words are written (`plan.py`, `writing.py`). Its questions (`asking_*.py`) ask for facts among near
misses: facts under aliases, in other words, in tables, more than once, or split over papers.

A sentence or a row of a table is evidence of a question exactly when it states a requested fact.
It counts as a reader of the whole paper would understand it. All statements of one
fact are alternatives: those of one paper, and those of a paper that cites it. A sentence that only
explains an alias is not evidence. The same settings give the same bytes in every process.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import get_args

from env.problems.papers.asked import Asked, Kind, add_near_misses
from env.problems.papers.asking_claims import (
    ask_aspect,
    ask_training,
    ask_trait,
    miss_aspect,
    tell_aspect,
    tell_size,
    tell_training,
    tell_trait,
    trait_value,
)
from env.problems.papers.asking_results import ask_ablation, ask_board, ask_score
from env.problems.papers.plan import Draft, Key
from env.problems.papers.reader import templates
from env.problems.papers.writing import Writer
from env.problems.schema import Fact, Paper, Problem, Span, Split, Tier, make_collection, tier_of
from env.problems.settings import LevelSettings, SyntheticSettings

KINDS: Mapping[str, tuple[Kind, int, int]] = {
    "score": (ask_score, 1, 99),
    "board": (ask_board, 2, 99),
    "ablation": (ask_ablation, 1, 2),
    "weakness": (ask_trait("weakness"), 1, 3),
    "cause": (ask_trait("cause"), 1, 3),
    "updates": (ask_trait("updates"), 1, 2),
    "size": (ask_trait("size"), 1, 2),
    "training": (ask_training, 2, 6),
    "aspect": (ask_aspect, 1, 99),
}
"""Each kind with the fewest and the most gold papers it is asked with."""


def _gold_counts(level: LevelSettings, rng: Random, first: int, count: int) -> list[int]:
    """Gold papers of the questions `first` to `first + count` of a level: tiers in turn."""
    by_tier: dict[Tier, list[int]] = {tier: [] for tier in get_args(Tier)}
    for gold in range(1, level.max_gold + 1):
        by_tier[tier_of(gold)].append(gold)
    reachable = [golds for golds in by_tier.values() if golds]
    return [rng.choice(reachable[(first + q) % len(reachable)]) for q in range(count)]


def _ask(draft: Draft, gold: int, used: list[str]) -> Asked:
    """A question with so many gold papers, of a kind new to the collection if there is one."""
    kinds = [name for name, (_, least, most) in KINDS.items() if least <= gold <= most]
    draft.rng.shuffle(kinds)
    kinds.sort(key=used.count)
    for name in kinds:
        asked = KINDS[name][0](draft, gold)
        if asked is not None:
            used.append(name)
            return asked
    raise AssertionError("an aspect can always be asked for")


def _add_background(draft: Draft, asked: list[Asked]) -> None:
    """Add statements beside those of the questions: traits, some aspects, sizes of corpora."""
    rng = draft.rng
    kinds = [question.kind for question in asked]
    for plan in draft.plans:
        if plan.own and plan.own.abbr not in draft.taken:
            for trait in templates().traits:
                if rng.random() < 0.5:
                    tell_trait(draft, plan, trait, plan.own, trait_value(draft, trait))
        free = [a for a in templates().aspects if a not in draft.asked and a not in plan.touched]
        for aspect in rng.sample(free, rng.randint(1, 3)):
            miss = miss_aspect(draft, plan, aspect) if rng.random() < 0.4 else None
            if miss:
                plan.add(*miss)
            else:
                tell_aspect(draft, plan, aspect)
    subjects = [key[1] for question in asked for key in question.keys]
    for corpus in draft.field.corpora:
        if corpus not in subjects and "training" in kinds and rng.random() < 0.5:
            tell_size(draft, rng.choice(draft.plans), corpus)


def _evidence(keys: tuple[Key, ...], stated: list[tuple[Span, tuple[Key, ...]]]) -> list[Fact]:
    """A fact for each key, with every statement of it."""
    return [
        Fact(fact_id=f"f{i}", spans=tuple(span for span, states in stated if key in states))
        for i, key in enumerate(keys, 1)
    ]


def plan_collection(
    settings: SyntheticSettings, split: Split, difficulty: str, number: int
) -> tuple[Draft, list[Asked]]:
    """A collection before it is written: its papers' plans and its questions."""
    # A generator of its own for each collection: one more changes no other. Python seeds from
    # a string by its SHA-512, so no process's hash seed enters.
    rng = Random(f"{settings.seed}/papers/{split}/{difficulty}/{number}")
    level = settings.levels[difficulty]
    canary = rng.random() < settings.canaries
    draft = Draft(rng, split == "test", level, settings.words, canary)
    for plan in draft.plans:
        tell_training(draft, plan)
    count = settings.questions_per_collection
    used: list[str] = []
    golds = _gold_counts(level, rng, number * count, count)
    asked = [_ask(draft, gold, used) for gold in golds]
    for question in asked:
        add_near_misses(draft, question)
    _add_background(draft, asked)
    return draft, asked


def write_collection(
    settings: SyntheticSettings, split: Split, difficulty: str, number: int
) -> list[Problem]:
    """The problems of one collection, which share their papers.

    Args:
        settings: of the world `papers`.
        split: of the collection.
        difficulty: one of the levels.
        number: of the collection within split and level.
    """
    draft, asked = plan_collection(settings, split, difficulty, number)
    papers: list[Paper] = []
    stated: list[tuple[Span, tuple[Key, ...]]] = []
    for plan in draft.plans:
        writer = Writer(draft, plan)
        papers.append(writer.paper())
        stated += writer.spans
    questions = [(question.text, _evidence(question.keys, stated)) for question in asked]
    return make_collection(settings.seed, split, difficulty, number, papers, questions)
