"""The gate: when it opens, when it refuses, what it writes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.problem_files import write_problems
from helpers.recorder import Recorder

from agent.policies.base import TurnReply
from agent.policies.scripted import Scripted, oracle, random_code
from agent.rollouts.trajectory import FrameRecord, Trajectory, TurnRecord
from agent.settings import EngineSettings
from env.models import AnswerMetrics, Counters
from rewards.settings import RewardSettings
from tasks import gate, paths
from tasks.errors import GateFailed, StageError

REWARDS = RewardSettings()
QUOTE = "On Pobaseg, Jakzam comes to 35."


def episode(
    primary: float = 0.0, *, level: str = "hard", void: str | None = None, read: bool = True
) -> Trajectory:
    root = FrameRecord(0, None, 0, "rlm", stop_reason="final")
    shown = f"new: {[QUOTE]}" if read else "context: 4 papers"
    root.turns.append(TurnRecord(shown, text=f"FINAL({[QUOTE]})", finish="stop"))
    return Trajectory(
        problem_id="q",
        difficulty=level,
        frames={0: root},
        answer=[QUOTE],
        reward=None if void else 0.2 + 0.4 * primary,
        components={} if void else {"primary_objective": primary, "format_compliance": 1.0},
        metrics=None if void else AnswerMetrics(precision=primary, recall=primary, f1=primary),
        counters=Counters(turns=2),
        void=void,
    )


class Level:
    """Plays episodes that are all 0, but for those whose number is in `hits`."""

    def __init__(self, hits: dict[str, list[int]], read: bool = True) -> None:
        self.hits, self.read = hits, read
        self.calls: list[tuple[str, int, int]] = []

    def __call__(self, level: str, start: int, stop: int) -> list[Trajectory]:
        self.calls.append((level, start, stop))
        return [
            episode(0.5 if number in self.hits.get(level, []) else 0.0, level=level, read=self.read)
            for number in range(start, stop)
        ]


def probe(play: Level) -> dict[str, list[Trajectory]]:
    return gate.probe(play, ("hard", "easy"), REWARDS)


def decide(played: dict[str, list[Trajectory]]) -> dict[str, Any]:
    return gate.decide(played, REWARDS)


def test_two_finds_at_easy_alone_among_the_first_ten_end_the_probe_and_open_the_gate():
    play = Level({"easy": [3, 4]})
    report = decide(probe(play))
    assert play.calls == [("hard", 0, 10), ("easy", 0, 10)]
    assert report["passed"]
    assert (report["levels"]["easy"]["found"], report["levels"]["hard"]["found"]) == (2, 0)
    assert report["levels"]["hard"]["components"]["format_compliance"] == 1.0


def test_the_target_is_played_on_until_it_opens():
    play = Level({"hard": [9, 27]})
    played = probe(play)
    assert play.calls[2:] == [("hard", 10, 20), ("hard", 20, 30)]
    assert decide(played)["passed"]


def test_both_levels_are_played_to_the_end_before_refusing():
    play = Level({"hard": [1, 60], "easy": [1, 60]})  # the second is one more than may be played
    played = probe(play)
    assert {level: len(episodes) for level, episodes in played.items()} == {"hard": 60, "easy": 60}
    assert not decide(played)["passed"]


def test_six_successes_that_quote_what_no_agent_read_are_luck_and_seven_are_not():
    six = decide(probe(Level({"easy": list(range(6))}, read=False)))
    assert not six["passed"]
    assert six["levels"]["easy"] | {"found": 0, "succeeded": 6} == six["levels"]["easy"]
    assert decide(probe(Level({"easy": list(range(7))}, read=False)))["passed"]


def test_many_small_gains_that_quote_what_no_agent_read_do_not_open_the_gate():
    assert not decide({"hard": [episode(0.3, read=False)] * 60})["passed"]


def test_a_text_shorter_than_a_span_counts_as_unread():
    found = episode(0.5)
    found.answer = [QUOTE[:4]]
    assert not gate.has_read(found, REWARDS.min_span_chars)


def test_void_episodes_are_left_out_and_many_of_them_stop_the_stage():
    few = decide({"hard": [episode(1.0)] * 6 + [episode(void="lost")] * 4})
    assert few["levels"]["hard"]["void"] == 4
    assert few["levels"]["hard"]["reward_mean"] == pytest.approx(0.6)
    with pytest.raises(StageError, match="lost"):
        decide({"hard": [episode(1.0)] * 4 + [episode(void="lost")] * 6})


def test_the_baseline_weighs_levels_alike():
    played = {"easy": [episode(1.0)] * 30, "hard": [episode(0.0)] * 10}
    summary = gate.summarise(played)
    assert summary["reward_mean"] == pytest.approx(0.4)
    assert summary["components"]["primary_objective"] == pytest.approx(0.5)
    assert summary["success_rate"] == pytest.approx(0.5)
    assert summary["levels"]["easy"]["reward_mean"] == pytest.approx(0.6)
    assert summary["episodes"] == 40


@pytest.fixture
def stage(tmp_path, monkeypatch, server_url, server_params, server_problems):
    """Runs the stage on the real environment with a scripted policy in the model's place."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLM_ENV_URL", server_url)
    write_problems(paths.TRAIN, map(server_problems.get, server_problems.ids(split="train")))
    monkeypatch.setattr(gate, "MOST", 12)
    small = server_params.gate.model_copy(update={"baseline_episodes": 12})
    absent = EngineSettings(url="http://127.0.0.1:9")  # only the training asks it
    params = server_params.model_copy(update={"gate": small, "engine": absent})

    def run(policy: Scripted) -> Recorder:
        monkeypatch.setattr("agent.policies.hf_policy.load_model", lambda path: (path, None))
        monkeypatch.setattr("agent.policies.hf_policy.TransformersPolicy", lambda *args: policy)
        notes: Any = Recorder()
        gate.run(params, notes)
        return notes

    return run


def test_an_open_gate_writes_report_and_baseline(stage, server_problems):
    notes = stage(oracle(server_problems.get(item) for item in server_problems.ids()))
    report = json.loads(paths.GATE.read_text())
    baseline = json.loads(paths.BASELINE.read_text())
    assert report["passed"]
    assert [level["episodes"] for level in report["levels"].values()] == [10, 10]
    assert list(baseline["levels"]) == ["easy", "medium", "hard"]
    assert all(level["episodes"] == 12 for level in baseline["levels"].values())
    assert baseline["reward_mean"] > 0.9
    assert notes.artifacts == [paths.GATE, paths.BASELINE]
    assert notes.metrics["baseline/hard_reward"] > 0.9
    assert notes.tags == {"gate": "open"}


def test_a_refusing_gate_writes_its_report_and_raises_its_advice(stage):
    paths.BASELINE.parent.mkdir()
    paths.BASELINE.write_text("{}")
    with pytest.raises(GateFailed) as refused:
        stage(Scripted(lambda seen: "I do not know."))
    report = json.loads(paths.GATE.read_text())
    assert not report["passed"]
    assert report["advice"] == str(refused.value)
    assert "repl block" in report["advice"]
    assert {level["episodes"] for level in report["levels"].values()} == {12}
    assert not paths.BASELINE.exists()


def test_random_code_is_refused(stage):
    with pytest.raises(GateFailed, match="0 by reading"):
        stage(random_code())


def test_a_failing_policy_is_no_refusal(stage):
    class Failing(Scripted):
        def act(self, requests):
            return [TurnReply(text="", finish="error") for _ in requests]

    with pytest.raises(StageError, match="void"):
        stage(Failing(lambda seen: ""))
    assert not paths.GATE.exists()
