"""Statistics and summaries of episodes, against values worked by hand."""

from typing import Any

import numpy as np
import pytest

from agent.evaluation import report
from agent.evaluation.report import compare_models, episode_row, summary
from agent.evaluation.statistics import Bootstrap, choose_problems
from agent.rollouts.trajectory import FrameRecord, Trajectory, TurnRecord
from env.models import AnswerMetrics, Counters

BOOTSTRAP = Bootstrap(resamples=2000, seed=0)


def episode(problem_id: str, reward: float, *, void: str | None = None) -> Trajectory:
    collection, level = problem_id.split("-")[:2]
    turn = TurnRecord("question", "FINAL([])", "stop", [1, 2, 3], [4, 5])
    frames = {0: FrameRecord(0, None, 0, "rlm", [turn, turn], "final")}
    made = Trajectory(problem_id, level, collection, "focused", frames, void=void, seconds=2.0)
    made.reward = None if void else reward
    made.components = dict.fromkeys(report.COMPONENTS, reward)
    scores = dict.fromkeys(("precision", "recall", "f1", "paper_f1"), reward)
    made.metrics = AnswerMetrics(**scores, exact_match=reward == 1.0)
    made.counters = Counters(turns=2, frames=1)
    return made


def rows(model: str, rewards: dict[str, float], **kwargs: Any) -> list[report.EpisodeRow]:
    return [
        episode_row(episode(problem, reward, **kwargs), model, mode)
        for mode in ("greedy", "sampled")
        for problem, reward in rewards.items()
    ]


BEFORE = {"g1-easy-1": 0.2, "g1-easy-2": 0.4, "g2-hard-1": 0.0, "g3-hard-2": 0.2}
AFTER = {"g1-easy-1": 0.8, "g1-easy-2": 0.6, "g2-hard-1": 0.4, "g3-hard-2": 0.6}


def test_a_row_has_all_tokens_and_a_success_where_an_answer_reaches_the_threshold() -> None:
    good, below, silent = (episode("g1-easy-1", reward) for reward in (0.5, 0.49, 0.9))
    silent.root.stop_reason = "max_turns"
    lost = episode("g1-easy-1", 0.5, void="lost")
    made = [episode_row(one, "after", "greedy") for one in (good, below, silent, lost)]
    assert (made[0]["prompt_tokens"], made[0]["sampled_tokens"]) == (6, 4)
    assert [row["success"] for row in made] == [True, False, False, None]
    assert [made[3][name] for name in report.SCORES] == [None] * len(report.SCORES)


def test_a_pair_with_a_void_on_one_side_is_left_out() -> None:
    before = rows("before", {"g1-easy-1": 0.2, "g2-easy-1": 0.2})
    after = rows("after", {"g2-easy-1": 0.0}, void="lost: it") + rows("after", {"g1-easy-1": 0.8})
    assert summary(after)["voids"] == {"lost": 2}
    assert (summary(after)["void_rate"], summary(after)["reward_mean"]) == (0.5, 0.8)
    found = report.compare(before, after, "reward", BOOTSTRAP)
    assert (found.before, found.after) == pytest.approx((0.2, 0.8))
    assert found.difference.mean == pytest.approx(0.6)
    assert found.difference.n == 2  # both modes of the first problem


def test_the_bootstrap_covers_the_truth_when_problems_of_a_collection_are_alike() -> None:
    rng = np.random.default_rng(1)
    collections = [f"g{i}" for i in range(40) for _ in range(3)]
    hits_by_collection = hits_single = 0
    for trial in range(200):
        values = np.repeat(rng.normal(0.0, 1.0, 40), 3) + rng.normal(0.0, 0.2, 120)
        collectioned = Bootstrap(300, trial).mean(values, collections)
        single = Bootstrap(300, trial).mean(values, [str(i) for i in range(120)])
        hits_by_collection += collectioned.low < 0 < collectioned.high
        hits_single += single.low < 0 < single.high
    assert 0.88 <= hits_by_collection / 200 <= 0.99
    assert hits_single / 200 < 0.85  # what pretending independence would give


def test_problems_are_balanced_and_chosen_by_the_seed() -> None:
    ids = {level: [f"{level}{i}" for i in range(50)] for level in ("easy", "medium", "hard")}
    chosen = choose_problems(ids, 20, seed=1)
    assert [sum(level == name for level, _ in chosen) for name in ids] == [7, 7, 6]
    assert len(set(chosen)) == 20
    assert chosen != choose_problems(ids, 20, seed=2)


@pytest.mark.parametrize(("count", "shares"), [(10, [5, 2, 3]), (12, [7, 2, 3]), (99, [9, 2, 3])])
def test_difficulties_with_few_problems_leave_their_share_to_others(count, shares) -> None:
    ids = {"easy": list("abcdefghi"), "medium": ["j", "k"], "hard": ["l", "m", "n"]}
    levels = [level for level, _ in choose_problems(ids, count, seed=0)]
    assert [levels.count(level) for level in ids] == shares


def test_the_report_holds_the_difference_worked_by_hand() -> None:
    found = compare_models(
        {"before": rows("before", BEFORE), "after": rows("after", AFTER)},
        {"before": [1.0, 3.0], "after": [2.0]},
        BOOTSTRAP,
    )
    assert (found["n"], found["collections"]) == (4, 3)
    assert found["before"]["reward_mean"] == pytest.approx(0.2)
    assert found["after"]["reward_mean"] == pytest.approx(0.6)
    assert found["reward"]["difference"] == pytest.approx(0.4)
    assert found["improvement_percent"] == pytest.approx(200.0)
    assert found["improvement"] == "Improvement: 200.0 %"
    from_0 = {"before": rows("before", dict.fromkeys(BEFORE, 0.0)), "after": rows("after", AFTER)}
    no_start = compare_models(from_0, {"before": [], "after": []}, BOOTSTRAP)
    assert no_start["improvement_percent"] is None
    assert no_start["improvement"] == "Improvement: from 0 to 0.600"
    low, high = found["reward"]["ci95"]
    assert low < 0.4 <= high
    assert set(found["before"]["components"]) == set(report.COMPONENTS)
    assert found["before"]["difficulties"]["easy"]["f1_greedy"] == pytest.approx(0.3)
    assert found["before"]["tiers"]["focused"]["n"] == 4
    assert found["before"]["latency"]["one_at_a_time"]["p50_s"] == pytest.approx(2.0)


# --- voids that a model brings about


VOIDED = {
    "looks poor": lambda row: row["reward"] < 0.5,
    # Greedy episodes stay, so that most figures show no void.
    "looks poor and nobody minds": lambda row: row["mode"] == "sampled" and row["reward"] < 0.5,
    "is hard": lambda row: row["difficulty"] == "hard",
}


def both(mean: float, seed: int) -> dict[str, float]:
    """Noisy rewards of 60 problems in 20 collections; hard problems are worth less."""
    rng = np.random.default_rng(seed)
    levels = ["easy", "medium", "hard"] * 20
    means = [mean - 0.4 * (level == "hard") for level in levels]
    rewards = np.clip(rng.normal(means, 0.3), 0, 1).tolist()
    names = [f"g{n // 3}-{level}-{n}" for n, level in enumerate(levels)]
    return dict(zip(names, rewards, strict=True))


def without_scores(row: report.EpisodeRow) -> report.EpisodeRow:
    return row | dict.fromkeys((*report.SCORES, "success")) | {"void": "near the limit"}


@pytest.mark.parametrize("voided", VOIDED.values(), ids=VOIDED)
def test_a_model_gains_nothing_by_its_own_voids(voided, monkeypatch):
    before, after = rows("before", both(0.5, 1)), rows("after", both(0.5, 2))
    cheat = [without_scores(row) if voided(row) else row for row in after]
    alone: dict[str, list[float]] = {"before": [], "after": []}

    def measured(played: list[report.EpisodeRow]) -> dict[str, Any]:
        return compare_models({"before": before, "after": played}, alone, BOOTSTRAP)

    honest, found = measured(after), measured(cheat)
    assert found["reward"]["pairs"] == honest["reward"]["pairs"] == 60
    for score in ("reward", "f1_sampled", "primary_objective"):
        assert found[score]["difference"] < honest[score]["difference"]
        assert found[score]["after"] < honest[score]["after"]
    for score in ("reward_mean", "f1_sampled", "f1_greedy", "success_rate"):
        assert found["after"][score] <= honest["after"][score]
    lost = sum(row["void"] is not None for row in cheat)
    assert found["voids_as_zero"] == lost > 0
    assert found["after"]["voids"] == {"near the limit": lost}
    assert found["after"]["void_rate"] == pytest.approx(lost / 120)
    # As many voids on both sides are chance.
    assert report.charge_surplus(cheat, cheat) is cheat
    # The control: without the rule it gains.
    monkeypatch.setattr(report, "charge_surplus", lambda before, after: after)
    assert measured(cheat)["after"]["reward_mean"] > honest["after"]["reward_mean"] + 0.05


def test_pairs_match_by_problem_and_mode_not_by_order() -> None:
    before, after = rows("before", BEFORE), rows("after", AFTER)[::-1]
    olds, news, collections = report.paired(before, after, "reward")
    assert olds[:4] == list(BEFORE.values())
    assert news[:4] == list(AFTER.values())
    assert collections[:4] == ["g1", "g1", "g2", "g3"]


def test_metrics_beside_the_reward_are_means_over_those_that_have_them() -> None:
    played = [episode("g1-easy-1", 1.0), episode("g1-easy-2", 0.5), episode("g2-easy-1", 0.0)]
    played[1].metrics = AnswerMetrics(precision=1, recall=1, f1=1, exact_match=True)
    played[2].metrics = AnswerMetrics(precision=0, recall=0, f1=0)
    found = summary([episode_row(one, "before", "greedy") for one in played])
    assert found["exact_match"] == 1.0  # the third was played before it was counted
    assert found["paper_f1"] == 1.0
