"""The gate: when it opens, when it refuses, what it writes."""

import json
from typing import Any
from unittest import mock

import pytest
from helpers.problem_files import write_problems
from helpers.recorder import Recorder, recorded

from agent.policies.base import Policy, TurnReply
from agent.policies.scripted import Scripted, oracle, random_code
from agent.rollouts.trajectory import FrameRecord, Trajectory, TurnRecord
from env.models import AnswerMetrics
from rewards.settings import RewardSettings
from tasks import gate, paths
from tasks.errors import GateFailed, StageError

REWARDS = RewardSettings()
QUOTE = "On Pobaseg, Jakzam comes to 35."


def episode(primary=0.0, *, level="hard", void=None, read=True) -> Trajectory:
    root = FrameRecord(0, None, 0, "rlm", stop_reason="final")
    shown = f"new: {[QUOTE]}" if read else "context: 4 papers"
    root.turns.append(TurnRecord(shown, text=f"FINAL({[QUOTE]})", finish="stop"))
    played = Trajectory("q", level, frames={0: root}, answer=[QUOTE], void=void)
    if void is None:
        played.reward = 0.2 + 0.4 * primary
        played.components = {"primary_objective": primary, "format_compliance": 1.0}
        played.metrics = AnswerMetrics(precision=primary, recall=primary, f1=primary)
    return played


def decide(played: dict[str, list[Trajectory]]) -> dict[str, Any]:
    return gate.decide(played, REWARDS)


@pytest.mark.parametrize(
    ("hits", "read", "played", "passed"),
    [
        ({"easy": [3, 4]}, True, {"hard": 10, "easy": 10}, True),  # two finds among the first ten
        ({"hard": [9, 27]}, True, {"hard": 30, "easy": 10}, True),  # the target is played on
        # The last of each level is one more than may be played.
        ({"hard": [1, 60], "easy": [1, 60]}, True, {"hard": 60, "easy": 60}, False),
        # Successes that quote what no agent read: six are luck, seven are not.
        ({"easy": [*range(6)]}, False, {"hard": 60, "easy": 60}, False),
        ({"easy": [*range(7)]}, False, {"hard": 10, "easy": 10}, True),
    ],
)
def test_the_gate_plays_on_until_finds_or_many_successes_open_it(hits, read, played, passed):
    def play(level: str, start: int, stop: int) -> list[Trajectory]:
        scores = [0.5 * (number in hits.get(level, [])) for number in range(start, stop)]
        return [episode(score, level=level, read=read) for score in scores]

    found = gate.probe(play, ("hard", "easy"), REWARDS)
    assert {level: len(episodes) for level, episodes in found.items()} == played
    assert decide(found)["passed"] == passed


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
    summary = gate.summarise({"easy": [episode(1.0)] * 30, "hard": [episode(0.0)] * 10})
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
    params = server_params.model_copy(update={"gate": small})

    def run(policy: Scripted) -> Recorder:
        monkeypatch.setattr("agent.policies.hf_policy.load_model", lambda path: (path, None))
        monkeypatch.setattr("agent.policies.hf_policy.TransformersPolicy", lambda *args: policy)
        return recorded(gate, params)

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
    lost = mock.Mock(spec=Policy, act=lambda asked: [TurnReply("", finish="error") for _ in asked])
    with pytest.raises(StageError, match="void"):
        stage(lost)
    assert not paths.GATE.exists()
