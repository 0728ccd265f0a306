"""The time that is left: only what was measured whole, with these settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.durations import FILE, Durations
from flows.stages import STAGES
from tasks.config.params import Params
from tasks.reporting.progress import in_words

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


def test_a_first_run_has_no_estimate() -> None:
    assert left("prepare") == ""
    play("train", "done", 180)
    assert left("prepare") == ""
    assert left("train") == "train about 3 min left"


def test_all_known_stages_sum_to_the_whole_run() -> None:
    for name in STAGES:
        play(name, "done", 60)
    assert left("prepare") == "prepare about 60 s; whole run about 14 min left"
    assert left("promote", kept=("promote",)) == "promote a few seconds; whole run about 60 s left"


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


def test_a_cached_stage_keeps_the_figure_of_its_run() -> None:
    play("train", "cached", 1)
    assert left("train") == ""
    play("train", "done", 180)
    play("train", "cached", 1)
    assert left("train") == "train about 3 min left"


def test_a_broken_file_is_no_estimate() -> None:
    FILE.parent.mkdir()
    FILE.write_text("{")
    assert left("train") == ""


def test_durations_are_said_as_roughly_as_they_are_known() -> None:
    told = [in_words(seconds) for seconds in (3, 44, 181, 5500)]
    assert told == ["a few seconds", "about 40 s", "about 3 min", "about 1.5 h"]
