"""The rule of promotion, on rows whose outcome is known."""

from random import Random
from statistics import pstdev
from typing import Any

import pytest

from agent.evaluation.promotion import compare_on_set, too_small, two_sets
from agent.evaluation.report import EpisodeRow
from agent.evaluation.statistics import Bootstrap
from agent.rollouts.specs import EpisodeSpec
from agent.settings import LEAST_COLLECTIONS, LEAST_PROBLEMS

BOOTSTRAP = Bootstrap(resamples=2000, seed=0, level=0.99)
N = 216


def rows(scores: list[float], **also: Any) -> list[EpisodeRow]:
    """Three problems a collection."""
    return [
        {"problem_id": f"p{number}", "collection_id": f"g{number // 3}", "mode": "greedy"}
        | {"void": None, "primary_objective": score, "reward": score, **also}
        for number, score in enumerate(scores)
    ]


def noisy(mean: float, seed: int) -> list[float]:
    rng = Random(seed)
    return [min(1.0, max(0.0, mean + rng.gauss(0, 0.3))) for _ in range(N)]


COMPARED = {
    "better": (noisy(0.3, 1), noisy(0.6, 2), {}, "primary objective "),
    "worse": (noisy(0.6, 1), noisy(0.3, 2), {}, "worse: "),
    "equal": (noisy(0.5, 1), noisy(0.5, 1), {}, "not proved better: "),
    "a tie": (noisy(0.5, 1), noisy(0.5, 2), {}, "not proved better: "),
    "lower reward": (noisy(0.3, 1), noisy(0.6, 2), {"reward": 0.1}, "its total reward is lower"),
}


@pytest.mark.parametrize("case", COMPARED)
def test_only_a_challenger_that_is_better_wins(case: str) -> None:
    opponent, challenger, also, reason = COMPARED[case]
    found = compare_on_set(rows(opponent), rows(challenger, **also), BOOTSTRAP)
    assert found.won == (reason == "primary objective ")
    assert found.reason.startswith(reason)
    assert "99 % interval" in found.reason
    assert (found.figures["n"], found.figures["collections"]) == (N, N // 3)
    low, high = found.figures["primary_objective"]["interval"]
    assert low <= found.figures["primary_objective"]["difference"] <= high


def test_voids_leave_their_pairs_and_too_many_stop_the_comparison() -> None:
    def losing(count: int) -> list[EpisodeRow]:
        lost = rows(noisy(0.6, 2))
        for row in lost[:count]:
            row |= {"void": "connection", "primary_objective": None, "reward": None}
        return lost

    room = N - LEAST_PROBLEMS
    found = compare_on_set(rows(noisy(0.3, 1)), losing(room), BOOTSTRAP)
    assert found.figures["primary_objective"]["pairs"] == LEAST_PROBLEMS
    with pytest.raises(ValueError, match=r"only 199 of 216 pairs.*first void: connection"):
        compare_on_set(rows(noisy(0.3, 1)), losing(room + 1), BOOTSTRAP)


def test_a_challenger_cannot_win_by_its_own_voids() -> None:
    """As good as the opponent; what it would have lost is void."""
    opponent = rows([1.0] * N)
    for row in opponent[:: N // 12][:12]:
        row |= {"primary_objective": 0.0, "reward": 0.0}
    challenger = rows([1.0] * N)
    for row in challenger[1 :: N // 7][:7]:
        row |= {"void": "busy", "primary_objective": None, "reward": None}
    found = compare_on_set(opponent, challenger, BOOTSTRAP)
    assert found.figures["primary_objective"]["interval"][0] > 0
    assert not found.won
    assert "7 more of its episodes are void than of the other's" in found.reason
    # Equal voids on both sides are chance, and a win that voids cannot explain counts.
    for row in opponent[2 :: N // 7][:7]:
        row |= {"void": "busy", "primary_objective": None, "reward": None}
    assert compare_on_set(opponent, challenger, BOOTSTRAP).won
    assert compare_on_set(rows([0.0] * N), challenger, BOOTSTRAP).won


def test_an_interval_has_the_level_that_it_says() -> None:
    values = [float(n % 10) for n in range(400)]
    found = Bootstrap(resamples=20_000, seed=0, level=0.9).mean(values, list(map(str, range(400))))
    half = 1.645 * pstdev(values) / 400**0.5  # of a normal mean
    assert found.high - found.low == pytest.approx(2 * half, rel=0.05)


def specs(collections: int, levels: tuple[str, ...] = ("easy", "hard")) -> list[EpisodeSpec]:
    return [
        EpisodeSpec(
            f"{level}-{collection}-{q}", difficulty=level, collection_id=f"{level}-{collection}"
        )
        for level in levels
        for collection in range(collections)
        for q in range(3)
    ]


def test_the_two_sets_share_no_collection_and_are_alike() -> None:
    first, second = two_sets(specs(50), 60, seed=1)
    assert {spec.collection_id for spec in first}.isdisjoint(s.collection_id for s in second)
    for chosen in (first, second):
        papers = {spec.collection_id for spec in chosen}
        assert (len(chosen), len(papers)) == (60, LEAST_COLLECTIONS)
        assert abs(sum(spec.difficulty == "easy" for spec in chosen) - 30) <= 3
    assert len({spec.seed for spec in [*first, *second]}) == 120
    assert two_sets(specs(50), 60, seed=1) == (first, second)
    assert two_sets(specs(50), 60, seed=2) != (first, second)


def test_too_few_problems_make_small_sets_and_not_equal_ones() -> None:
    first, second = two_sets(specs(3), 60, seed=1)
    assert len(first) + len(second) == len(specs(3))
    assert abs(len(first) - len(second)) <= 6


SIZES = [
    (LEAST_PROBLEMS, LEAST_COLLECTIONS, True),
    (LEAST_PROBLEMS - 1, LEAST_COLLECTIONS, False),
    (5 * LEAST_PROBLEMS, LEAST_COLLECTIONS - 1, False),
    (5 * LEAST_PROBLEMS, 1, False),
]


@pytest.mark.parametrize(("problems", "collections", "enough"), SIZES)
def test_many_questions_about_few_documents_prove_nothing(problems, collections, enough):
    large = [EpisodeSpec(f"p{i}", collection_id=f"g{i}") for i in range(LEAST_PROBLEMS)]
    small = [EpisodeSpec(f"p{i}", collection_id=f"g{i % collections}") for i in range(problems)]
    for sets in ([large, small], [small, large]):
        found = too_small(sets)
        assert (found is None) == enough, found
