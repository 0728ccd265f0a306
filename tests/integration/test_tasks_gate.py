"""The zero-shot gate: when it opens, when it refuses, what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.policies.base import TurnReply
from agent.policies.scripted import Scripted, oracle
from agent.rollouts.trajectory import FrameRecord, Trajectory
from agent.settings import EngineSettings
from env.models import AnswerMetrics, Counters
from env.problems.schema import to_row
from tasks import gate, prepare
from tasks.errors import GateFailed, StageError
from tasks.settings import GateSettings

SETTINGS = GateSettings(episodes=10, max_episodes=60)


def episode(
    primary: float = 0.0,
    *,
    level: str = "hard",
    stop: str = "final",
    format_errors: int = 0,
    void: str | None = None,
) -> Trajectory:
    return Trajectory(
        problem_id="q",
        difficulty=level,
        frames={0: FrameRecord(0, None, 0, "rlm", stop_reason=stop)},
        reward=None if void else 0.2 + 0.4 * primary,
        components={} if void else {"primary_objective": primary, "format_compliance": 1.0},
        metrics=None if void else AnswerMetrics(precision=primary, recall=primary, f1=primary),
        counters=Counters(turns=2, format_errors=format_errors),
        void=void,
    )


class Level:
    """Plays episodes that are all 0, but for those whose number is in `hits`."""

    def __init__(self, hits: dict[str, int], available: int = 1000) -> None:
        self.hits, self.available = hits, available
        self.calls: list[tuple[str, int, int]] = []

    def __call__(self, level: str, start: int, stop: int) -> list[Trajectory]:
        self.calls.append((level, start, stop))
        return [
            episode(0.5 if self.hits.get(level) == number else 0.0, level=level)
            for number in range(start, min(stop, self.available))
        ]


def test_a_hit_among_the_first_ten_ends_the_probe():
    play = Level({"easy": 3})
    gate.probe(play, ("hard", "easy"), SETTINGS)
    assert play.calls == [("hard", 0, 10), ("easy", 0, 10)]


def test_the_target_is_played_on_until_its_first_hit():
    play = Level({"hard": 27})
    played = gate.probe(play, ("hard", "easy"), SETTINGS)
    assert play.calls[2:] == [("hard", 10, 20), ("hard", 20, 30)]
    assert gate.decide(played, SETTINGS)["passed"]


def test_both_levels_are_played_to_the_end_before_refusing():
    play = Level({"hard": 60, "easy": 60})  # one more than may be played
    played = gate.probe(play, ("hard", "easy"), SETTINGS)
    assert {level: len(episodes) for level, episodes in played.items()} == {"hard": 60, "easy": 60}
    assert not gate.decide(played, SETTINGS)["passed"]


def test_a_hit_of_the_easy_level_alone_opens_the_gate():
    play = Level({"easy": 59})
    report = gate.decide(gate.probe(play, ("hard", "easy"), SETTINGS), SETTINGS)
    assert report["passed"]
    assert (report["levels"]["easy"]["earned"], report["levels"]["hard"]["earned"]) == (1, 0)


def test_few_problems_end_the_probe_early():
    play = Level({}, available=14)
    played = gate.probe(play, ("hard",), SETTINGS)
    assert len(played["hard"]) == 14


def test_other_components_do_not_open_the_gate():
    report = gate.decide({"hard": [episode(0.0)] * 10}, SETTINGS)
    assert report["levels"]["hard"]["components"]["format_compliance"] == 1.0
    assert not report["passed"]


@pytest.mark.parametrize(
    ("sample", "word"),
    [
        (episode(stop="truncated"), "max_turn_tokens"),
        (episode(format_errors=2), "exactly one repl block"),
        (episode(stop="max_turns"), "max_turns"),
        (episode(), "contain no evidence"),
    ],
)
def test_the_advice_fits_what_was_seen(sample, word):
    report = gate.decide({"hard": [sample] * 10}, SETTINGS)
    assert word in report["advice"]


def test_void_episodes_are_left_out_and_many_of_them_stop_the_stage():
    few = gate.decide({"hard": [episode(1.0)] * 6 + [episode(void="lost")] * 4}, SETTINGS)
    assert few["levels"]["hard"]["void"] == 4
    assert few["levels"]["hard"]["reward_mean"] == pytest.approx(0.6)
    with pytest.raises(StageError, match="lost"):
        gate.decide({"hard": [episode(1.0)] * 4 + [episode(void="lost")] * 6}, SETTINGS)


def test_the_baseline_weighs_levels_alike():
    played = {"easy": [episode(1.0)] * 30, "hard": [episode(0.0)] * 10}
    summary = gate.summarise(played, 0.5, SETTINGS)
    assert summary["reward_mean"] == pytest.approx(0.4)
    assert summary["components"]["primary_objective"] == pytest.approx(0.5)
    assert summary["success_rate"] == pytest.approx(0.5)
    assert summary["levels"]["easy"]["reward_mean"] == pytest.approx(0.6)
    assert summary["episodes"] == 40


class Notes:
    """Records that a stage wrote to its MLflow run."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.tags: dict[str, Any] = {}
        self.artifacts: list[str] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.metrics |= metrics

    def log_artifact(self, path: Path) -> None:
        assert path.exists()
        self.artifacts.append(path.name)

    def set_tags(self, tags: dict[str, Any]) -> None:
        self.tags |= tags


@pytest.fixture
def stage(tmp_path, monkeypatch, server_url, server_params, server_problems):
    """Runs the stage on the real environment with a scripted policy in the model's place."""
    rows = [to_row(server_problems.get(item)) for item in server_problems.ids(split="train")]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLM_ENV_URL", server_url)
    gate.DATA.parent.mkdir(parents=True)
    prepare.write_parquet(gate.DATA, rows)
    small = server_params.gate.model_copy(update={"max_episodes": 12, "baseline_episodes": 12})
    absent = EngineSettings(kind="vllm", urls=["http://127.0.0.1:9"])  # only the training asks it
    params = server_params.model_copy(update={"gate": small, "engine": absent})

    def run(policy: Scripted) -> Notes:
        monkeypatch.setattr("agent.policies.hf_policy.load_model", lambda path: (path, None))
        monkeypatch.setattr("agent.policies.hf_policy.TransformersPolicy", lambda *args: policy)
        notes = Notes()
        gate.run(params, notes)
        return notes

    return run


def test_an_open_gate_writes_report_and_baseline(stage, server_problems):
    notes = stage(oracle(server_problems.get(item) for item in server_problems.ids()))
    report = json.loads(gate.GATE.read_text())
    baseline = json.loads(gate.BASELINE.read_text())
    assert report["passed"]
    assert [level["episodes"] for level in report["levels"].values()] == [10, 10]
    assert list(baseline["levels"]) == ["easy", "medium", "hard"]
    assert all(level["episodes"] == 12 for level in baseline["levels"].values())
    assert baseline["reward_mean"] > 0.9
    assert notes.artifacts == ["gate.json", "baseline.json"]
    assert notes.metrics["baseline/hard_reward"] > 0.9
    assert notes.tags == {"gate": "open"}


def test_a_refusing_gate_writes_its_report_and_raises_its_advice(stage):
    gate.BASELINE.parent.mkdir()
    gate.BASELINE.write_text("{}")
    with pytest.raises(GateFailed) as refused:
        stage(Scripted(lambda seen: "I do not know."))
    report = json.loads(gate.GATE.read_text())
    assert not report["passed"]
    assert report["advice"] == str(refused.value)
    assert "repl block" in report["advice"]
    assert {level["episodes"] for level in report["levels"].values()} == {12}
    assert not gate.BASELINE.exists()


def test_a_failing_policy_is_no_refusal(stage):
    class Failing(Scripted):
        def act(self, requests):
            return [TurnReply(text="", finish="error") for _ in requests]

    with pytest.raises(StageError, match="void"):
        stage(Failing(lambda seen: ""))
    assert not gate.GATE.exists()


def test_missing_data_and_missing_models_are_named(tmp_path, monkeypatch, server_params):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StageError, match="prepare"):
        gate.run(server_params, Notes())
    gate.DATA.parent.mkdir(parents=True)
    prepare.write_parquet(gate.DATA, [])
    with pytest.raises(StageError, match="models/base: no such folder"):
        gate.run(server_params, Notes())
