"""The time that is left: only what was measured whole, with these settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.durations import Durations
from flows.stages import BY_DVC, STAGES
from tasks.config.params import Params

PARAMS = Params()


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def play(name: str, outcome: str, seconds: float, params: Params = PARAMS) -> None:
    durations = Durations(params, [])
    durations.begin(name)
    durations.end(name, outcome, seconds)


def left(name: str, params: Params = PARAMS, kept: tuple[str, ...] = ()) -> str:
    return Durations(params, kept).left(name)


def changed(**settings: int) -> Params:
    train = PARAMS.train.model_copy(update=settings)
    return PARAMS.model_copy(update={"train": train})


def test_other_settings_have_no_estimate_and_another_seed_has() -> None:
    play("train", "done", 180)
    assert left("train", changed(seed=7)) == "train about 3 min left"
    assert left("train", changed(steps=7)) == ""


@pytest.mark.parametrize("outcome", ["interrupted", "failed", "killed"])
def test_a_stage_that_resumed_leaves_no_figure(outcome: str) -> None:
    if outcome == "killed":
        Durations(PARAMS, []).begin("train")
    else:
        play("train", outcome, 100)
    assert left("train") == ""
    play("train", "done", 5)
    assert left("train") == ""
    play("train", "done", 180)
    assert left("train") == "train about 3 min left"


def test_a_run_that_makes_no_model_is_short_and_changes_no_estimate() -> None:
    for name in STAGES:
        play(name, "done", 30)
    again = Durations(PARAMS, BY_DVC)
    assert again.left("register") == "register a few seconds; whole run a few seconds left"
    again.begin("promote")
    again.end("promote", "done", 0.2)
    assert left("promote") == "promote about 30 s; whole run about 60 s left"
