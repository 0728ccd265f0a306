"""Held-out evaluation during training: its problems and its figures."""

from __future__ import annotations

from agent.evaluation.held_out import choose_held_out, held_out_metrics
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import FrameRecord, Trajectory
from env.models import AnswerMetrics

SPECS = [
    EpisodeSpec(f"{level}-{i}", difficulty=level, collection_id=f"{level}-{i // 3}")
    for level in ("easy", "hard", "double")
    for i in range(9)
]
LEVELS = ["easy", "hard"]


def episode(level: str, reward: float, number: int = 0, void: str | None = None) -> Trajectory:
    tree = Trajectory(f"{level}-{number}", level, f"{level}-{number}", void=void)
    tree.frames = {0: FrameRecord(0, None, 0, "rlm", [], "final")}
    if void is None:
        tree.reward = reward
        tree.components = {"primary_objective": reward}
        tree.metrics = AnswerMetrics(precision=reward, recall=reward, f1=reward)
    return tree


def test_each_level_has_its_problems_and_they_are_the_same_each_time() -> None:
    chosen = choose_held_out(SPECS, 4, seed=0)
    assert [spec.difficulty for spec in chosen] == ["easy"] * 4 + ["hard"] * 4 + ["double"] * 4
    assert chosen == choose_held_out(SPECS, 4, seed=0)
    assert chosen != choose_held_out(SPECS, 4, seed=1)


def test_a_level_with_too_few_problems_gives_all_of_them() -> None:
    assert len(choose_held_out(SPECS[:11], 9, seed=0)) == 11


def test_figures_are_over_the_training_levels_and_by_level() -> None:
    played = [episode("easy", 1.0), episode("hard", 0.0), episode("double", 0.4)]
    found = held_out_metrics(played, LEVELS, success_at=0.5)
    assert found["eval/reward"] == found["eval/f1"] == found["eval/success_rate"] == 0.5
    assert (found["eval/easy_reward"], found["eval/hard_reward"]) == (1.0, 0.0)
    assert found["eval/double_reward"] == found["eval/double_f1"] == 0.4
    assert found["eval/episodes"] == 2
    assert found["eval/reward_ci95_low"] <= 0.5 <= found["eval/reward_ci95_high"]


def test_voids_have_no_score_and_are_counted() -> None:
    played = [episode("easy", 0.8), episode("easy", 0.0, 1, void="connection: reset")]
    found = held_out_metrics(played, LEVELS, success_at=0.5)
    assert (found["eval/reward"], found["eval/episodes"], found["eval/void_rate"]) == (0.8, 1, 0.5)
    assert held_out_metrics(played[1:], LEVELS, 0.5) == {"eval/void_rate": 1.0}
