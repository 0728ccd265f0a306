"""The whole reward: values worked by hand. `test_rewards_properties.py` has its properties."""

from dataclasses import replace
from math import comb
from statistics import fmean
from typing import Any

import pytest
from helpers.episodes import episode

from env.problems.fields import LevelSettings, SyntheticSettings, generate
from env.problems.schema import Problem
from rewards.combine import EpisodeFacts, score
from rewards.components import by_sentences, par_of_candidates
from rewards.rubrics import EpisodeRubric
from rewards.settings import RewardSettings, WeightSettings

SETTINGS = RewardSettings()
LINES = {
    "p1": ["A study of Filtod.", "Kalvot scores 42 on Mirbex.", "Pezmas gets a prize in 1999."],
    "p2": ["On Mirbex, Kalvot gets 58.", "Sevzex reaches 94 on Mirbex.", "Kalvot is not new."],
    "p3": ["A study of Moklep.", "Kalvot reaches 71 on Gexzuk.", "Lufkig scores 25 on Pudlep."],
    "p4": ["A study of Vaplep.", "Kotkat scores 29 on Fodjum.", "Kalvot scores 42 on Mirbex."],
}
PAPERS = {paper_id: "\n".join(lines) for paper_id, lines in LINES.items()}


def place(paper_id: str, sentence: str) -> tuple[str, int, int]:
    start = PAPERS[paper_id].index(sentence)
    return paper_id, start, start + len(sentence)


TWICE = "Kalvot scores 42 on Mirbex."
ONCE = "On Mirbex, Kalvot gets 58."
EVIDENCE = [[place("p1", TWICE), place("p4", TWICE)], [place("p2", ONCE)]]
GOLD = [TWICE, ONCE]
WRONG = [line for lines in LINES.values() for line in lines if line not in GOLD and len(line) > 12]


def facts(answer: Any, **changes: Any) -> EpisodeFacts:
    """An expert's episode."""
    read = frozenset({"p1", "p2"})
    expert = {"papers": PAPERS, "evidence": EVIDENCE, "papers_read": read, "turns": 4}
    return episode(answer=answer, **expert | {"sub_calls": 2} | changes)


# --- values


def test_without_final_or_without_a_span_nothing_is_earned() -> None:
    for one in (facts(GOLD, answered=False), facts(["It is said that Kalvot scores."]), facts([])):
        nothing = score(one, SETTINGS)
        assert (nothing.total, set(nothing.components.values())) == (0.0, {0.0})


# --- the other components


def test_errors_cost_process_and_missing_blocks_cost_format() -> None:
    # Half of the facts is more than the 0.3 from which both count in full.
    one = score(facts([ONCE], turns_with_error=1, turns_with_one_block=3), SETTINGS)
    assert one.components["process_quality"] == 0.75
    assert one.components["format_compliance"] == 0.75


@pytest.mark.parametrize(("gold_papers", "sub_calls", "gain"), [(1, 1, 0.067), (7, 0, 0.120)])
def test_sub_calls_for_show_hide_a_malformed_turn_by_no_more_than(gold_papers, sub_calls, gain):
    # A paper is handed to a child, or the root prints seven. Three turns: a malformed one; the
    # child's, or the one that prints; the one that ends.
    quotes = [f"Kalvot scores {n} on Mirbex." for n in range(gold_papers)]
    papers = {quote: quote for quote in quotes}

    def earned(shown: int, bad: int = 1) -> float:
        turns = 2 + bad + shown
        played = episode(
            papers=papers | {"another": "Sevzex is not new."},
            evidence=[[(quote, 0, len(quote))] for quote in quotes],
            answer=quotes,
            papers_read=frozenset(papers),
            turns=turns,
            turns_with_error=bad,
            turns_with_one_block=turns - bad,
            sub_calls=sub_calls + shown,
        )
        return score(played, SETTINGS).total

    hidden = max(earned(shown) for shown in range(32))
    assert hidden - earned(0) == pytest.approx(gain, abs=0.0005)
    assert hidden < earned(0, bad=0) == 1.0


def test_without_evidence_process_and_format_keep_their_floor() -> None:
    wrong = score(facts([WRONG[0]]), SETTINGS)
    assert wrong.components["primary_objective"] == 0.0
    assert wrong.components["process_quality"] == pytest.approx(0.4)
    assert wrong.components["format_compliance"] == pytest.approx(0.4)
    assert wrong.components["efficiency"] == 0.0
    assert wrong.total < 0.25


def test_where_every_paper_is_gold_reading_all_shows_nothing() -> None:
    papers = {"p2": PAPERS["p2"]}
    only = {"papers": papers, "evidence": [EVIDENCE[1]], "papers_read": frozenset(papers)}
    wrong = score(facts(["Kalvot is not new."], **only), SETTINGS)
    assert wrong.components["process_quality"] == 0.0
    assert score(facts([ONCE], **only), SETTINGS).components["process_quality"] == 1.0


def test_efficiency_is_full_up_to_par_and_nothing_from_the_limit() -> None:
    def efficiency(turns: int, sub_calls: int) -> float:
        one = score(facts(GOLD, turns=turns, sub_calls=sub_calls), SETTINGS)
        return one.components["efficiency"]

    # Two sources: par 3 + 3 x 3 = 12, limit 36.
    assert efficiency(8, 4) == 1.0
    assert efficiency(16, 8) == pytest.approx(0.5)
    assert efficiency(18, 18) == 0.0
    assert efficiency(4, 10**400) == 0.0


def test_where_sentences_are_read_they_prove_nothing_without_an_answer_and_tokens_cost() -> None:
    par = par_of_candidates(24)

    def scored(answer: Any = GOLD, tokens: int = 300, others: float = 0.0) -> dict[str, float]:
        work = by_sentences(1.0, others, 24, tokens)
        return score(facts(answer, turns=200, work=work), SETTINGS).components

    assert scored()["process_quality"] == 1.0
    assert scored(others=0.2)["process_quality"] == 0.8
    assert scored([WRONG[0]])["process_quality"] == 0.0
    assert scored(tokens=int(par))["efficiency"] == 1.0
    assert scored(tokens=int(2 * par))["efficiency"] == pytest.approx(0.5, abs=0.01)
    assert scored(tokens=10**400)["efficiency"] == 0.0
    assert par_of_candidates(48) > 1.5 * par


def test_weights_are_those_of_the_settings() -> None:
    weights = WeightSettings(
        primary_objective=0.7, process_quality=0.1, format_compliance=0.1, efficiency=0.1
    )
    one = score(facts([WRONG[0]]), RewardSettings(weights=weights))
    assert one.total == pytest.approx(0.1 * 0.4 + 0.1 * 0.4)


def test_rubrics_carry_the_components_under_their_names() -> None:
    rubric = EpisodeRubric(SETTINGS)
    one = facts([ONCE], turns_with_error=1)
    value = rubric(None, one)
    expected = score(one, SETTINGS)
    assert value == rubric.last_score == expected.total
    assert {name: r.last_score for name, r in rubric.named_rubrics()} == expected.components
    assert rubric.score == expected
    rubric.reset()
    assert rubric.score is None


# --- negative controls: each guard stops its cheat

DOCUMENTS = [PAPERS["p1"], PAPERS["p2"]]
GUESSES = [f"Kalvot scores {n} on Mirbex." for n in range(10, 100)]
GUESSES += [f"On Mirbex, Kalvot gets {n}." for n in range(10, 100)]
HALVES = [TWICE[:13], TWICE[13:], ONCE[:13], ONCE[13:]]


CHEATS = {
    "documents": (DOCUMENTS, {"p1", "p2"}, {}, {"primary.OVERSHOOT_OFFSET": 100.0}),
    "guesses": (GUESSES, set(), {"free_misses": 2000}, {}),
    "shards": (HALVES, set(), {"min_cover": 0.4}, {}),
    "tidy and wrong": ([WRONG[0]], {"p1", "p2"}, {}, {"components.GATE_FLOOR": 1.0}),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_without_its_guard_the_cheat_would_pay(cheat, monkeypatch):
    answer, read, settings, constants = CHEATS[cheat]
    assert score(facts(answer, papers_read=read), SETTINGS).total < 0.25
    for name, value in constants.items():
        monkeypatch.setattr(f"rewards.{name}", value)
    assert score(facts(answer, papers_read=read), SETTINGS.model_copy(update=settings)).total > 0.4


# --- guesses where only a reader can choose among sentences


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
