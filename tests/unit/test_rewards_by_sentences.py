"""The reward of episodes in which only a reader can choose among sentences."""

from __future__ import annotations

from dataclasses import replace
from math import comb
from statistics import fmean

import pytest
from helpers.episodes import episode

from env.problems.fields import LevelSettings, SyntheticSettings, generate
from env.problems.schema import Problem
from rewards.combine import EpisodeFacts, score
from rewards.components import by_sentences, par_of_candidates
from rewards.settings import RewardSettings

LINES = [
    "Kalvot scores 42 on Toxalim.",
    "Kalvot scores 4 on Mekafob.",
    "On Toxalim, Kalvot gets 7.",
]


GOLD = "On Toxalim, Kalvot gets 7."
FACTS = episode(
    papers={"p1": "\n".join(LINES), "p2": "A study of Moklep."},
    evidence=[[("p1", 57, 57 + len(GOLD))]],
    answer=[GOLD],
    turns=8,
    work=by_sentences(gold=1.0, others=0.0, candidates=24, tokens=300),
)


def component(name: str, facts: EpisodeFacts = FACTS, **changes: float) -> float:
    changed = replace(facts, work=replace(facts.work, **changes))  # type: ignore[arg-type]
    return score(changed, RewardSettings()).components[name]


def test_process_is_the_share_of_gold_less_that_of_other_sentences() -> None:
    assert component("process_quality") == 1.0
    assert component("process_quality", gold=0.5, others=0.2) == pytest.approx(0.3)
    assert component("process_quality", gold=0.2, others=0.5) == 0.0
    failed = replace(FACTS, turns_with_error=2)
    assert component("process_quality", failed) == 0.75
    guessed = replace(FACTS, answer=[LINES[0]])
    assert component("process_quality", guessed) == 0.0


def test_efficiency_counts_tokens_and_neither_turns_nor_sub_calls() -> None:
    par = FACTS.work.par
    assert component("efficiency", used=0) == component("efficiency", used=int(par)) == 1.0
    assert component("efficiency", used=2 * par) == pytest.approx(0.5)
    assert component("efficiency", used=int(3 * par) + 1) == 0.0
    assert component("efficiency", used=10**400) == 0.0
    many = replace(FACTS, turns=200, turns_with_one_block=200)
    assert component("efficiency", many) == 1.0
    assert component("efficiency", replace(FACTS, answer=[LINES[0]])) == 0.0
    assert par_of_candidates(48) > 1.5 * par == 1.5 * par_of_candidates(24)


# --- guesses


def blind_guess(problem: Problem, count: int, shows: bool) -> float:
    """Expected reward of so many candidates drawn at random, read without cost or error."""
    gold = [span.text for fact in problem.evidence for span in fact.spans]
    rest = [span.text for span in problem.candidates if span.text not in gold]
    work = by_sentences(float(shows), 0.0, len(problem.candidates), tokens=0)
    facts = episode(papers=problem.texts, evidence=problem.places, answer=None, turns=2, work=work)
    bounds = RewardSettings()
    return sum(
        comb(len(gold), right)
        * comb(len(rest), count - right)
        / comb(len(problem.candidates), count)
        * score(replace(facts, answer=[*gold[:right], *rest[: count - right]]), bounds).total
        for right in range(min(count, len(gold)) + 1)
    )


def test_the_best_blind_guess_earns_a_quarter_and_its_show_of_reading_little() -> None:
    """The limits that docs/rewards.md states."""
    levels = {str(papers): LevelSettings(papers=papers) for papers in (4, 8, 16)}
    problems = generate(SyntheticSettings(levels=levels, collections={"test": 5}))
    best, gains = {}, []
    for level in levels:
        of_level = [problem for problem in problems if problem.difficulty == level]
        shown, alone = (
            [fmean(blind_guess(one, count, shows) for one in of_level) for count in (2, 3, 5)]
            for shows in (True, False)
        )
        best[level] = max(shown)
        gains += [more - less for more, less in zip(shown, alone, strict=True)]
    assert best["4"] < 0.29
    assert max(best["8"], best["16"]) < 0.25
    assert max(gains) < 0.085
