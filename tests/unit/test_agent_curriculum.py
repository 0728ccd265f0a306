"""The sampler of levels and the gate between them."""

import json

import numpy as np
import pytest

from agent.rollouts.trajectory import Trajectory
from agent.settings import CurriculumSettings
from agent.training.curriculum import Curriculum

AUTO = CurriculumSettings(mode="auto", window=2)
ALWAYS = AUTO.model_copy(update={"mode": "always"})


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PATIENCE": 4, "MIN_STEPS": 2, "REPLAY": 0.25}.items():
        monkeypatch.setattr(f"agent.training.curriculum.{name}", value)


def episodes(level: str, primary: float, count: int = 4, void: str | None = None):
    return [
        Trajectory("p", level, reward=1.0, components={"primary_objective": primary}, void=void)
        for _ in range(count)
    ]


def drive(curriculum: Curriculum, primary: float, steps: int, first: int = 1):
    """Steps in which every episode at the current level earns the same."""
    events = []
    for step in range(first, first + steps):
        events += curriculum.update(step, episodes(curriculum.level, primary))
    return events


def test_auto_falls_back_below_a_tenth_and_climbs_again():
    curriculum = Curriculum(AUTO)
    assert curriculum.level == "hard"
    assert drive(curriculum, 0.05, 3) == []
    (event,) = drive(curriculum, 0.05, 1, first=4)
    assert (event.step, event.kind, event.source, event.target) == (4, "fall_back", "hard", "easy")
    assert event.metric == pytest.approx(0.05)
    assert curriculum.level == "easy"
    (event,) = drive(curriculum, 0.5, 2, first=5)
    assert (event.step, event.kind, event.target) == (6, "promotion", "medium")
    (event,) = drive(curriculum, 0.4, 2, first=7)
    assert (event.kind, event.target) == ("promotion", "hard")
    assert drive(curriculum, 0.9, 10, first=9) == []
    assert curriculum.level == "hard"
    drive(curriculum, 0.0, 10, first=19)
    assert curriculum.level == "easy"
    assert drive(curriculum, 0.0, 20, first=29) == []


STAYS = [
    ({"mode": "auto"}, 0.1, "hard"),  # it falls back below a tenth alone
    ({"mode": "off", "target": "medium"}, 1.0, "medium"),
    ({"mode": "always", "target": "medium"}, 1.0, "medium"),
    ({"mode": "always"}, 0.3, "easy"),
]


@pytest.mark.parametrize(("changes", "primary", "level"), STAYS)
def test_the_level_after_twenty_equal_steps(changes, primary, level):
    curriculum = Curriculum(AUTO.model_copy(update=changes))
    drive(curriculum, primary, 20)
    assert curriculum.level == level


def test_a_promotion_wants_enough_steps_and_more_than_the_limit_over_the_window():
    curriculum = Curriculum(ALWAYS)
    assert drive(curriculum, 1.0, 1) == []
    assert len(drive(curriculum, 1.0, 1, first=2)) == 1
    assert drive(curriculum, 0.0, 20, first=3) == []  # nor does it fall back
    curriculum = Curriculum(ALWAYS)
    assert drive(curriculum, 0.29, 20) == []
    (event,) = drive(curriculum, 0.32, 1, first=21)
    assert event.metric == pytest.approx(0.305)


def test_replay_and_void_episodes_do_not_move_the_gate():
    curriculum = Curriculum(ALWAYS)
    drive(curriculum, 1.0, 2)
    assert curriculum.level == "medium"
    for step in range(3, 20):
        played = [
            *episodes("medium", 0.1),
            *episodes("easy", 1.0, count=50),
            *episodes("medium", 1.0, count=50, void="lost"),
        ]
        assert curriculum.update(step, played) == []
    assert curriculum.metric == pytest.approx(0.1)


def test_an_earlier_level_is_replayed_in_its_share():
    curriculum = Curriculum(ALWAYS)
    assert curriculum.levels_for(8, np.random.default_rng(0)) == ["easy"] * 8
    drive(curriculum, 1.0, 4)
    rng = np.random.default_rng(0)
    drawn = [level for _ in range(500) for level in curriculum.levels_for(5, rng)]
    assert drawn.count("hard") / len(drawn) == pytest.approx(0.75, abs=0.02)
    assert drawn.count("easy") / len(drawn) == pytest.approx(0.125, abs=0.02)


def test_a_state_restored_in_the_middle_gives_the_same_draws():
    def run(saved_at: int = 0) -> list[list[str]]:
        curriculum, played = Curriculum(AUTO), []
        for step in range(1, 81):
            if step == saved_at:
                state = json.loads(json.dumps(curriculum.state()))
                curriculum = Curriculum(AUTO)
                curriculum.restore(state)
            played.append(curriculum.levels_for(8, np.random.default_rng(step)))
            drive(curriculum, step / 80, 1, first=step)
        return played

    whole = run()
    assert len({tuple(levels) for levels in whole}) > 3
    for step in range(2, 40):
        assert run(saved_at=step) == whole


def test_a_step_always_holds_a_problem_of_the_current_level(monkeypatch):
    monkeypatch.setattr("agent.training.curriculum.REPLAY", 0.99)
    curriculum = Curriculum(ALWAYS)
    drive(curriculum, 1.0, 2)
    for seed in range(50):
        assert "medium" in curriculum.levels_for(2, np.random.default_rng(seed))
        assert curriculum.levels_for(1, np.random.default_rng(seed)) == ["medium"]


def test_levels_that_were_never_played_are_not_replayed():
    assert Curriculum(AUTO).levels_for(8, np.random.default_rng(0)) == ["hard"] * 8
