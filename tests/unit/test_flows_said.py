"""What a run says: the time that is left, its stages, and why a service did not start."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.changed import changed

from flows.chain import print_kept
from flows.durations import Durations
from flows.services import processes
from flows.stages import BY_DVC, STAGES
from flows.summary import StageRow, line
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


def test_other_settings_have_no_estimate_and_another_seed_has() -> None:
    play("train", "done", 180)
    assert left("train", changed(PARAMS, train={"seed": 7})) == "train about 3 min left"
    assert left("train", changed(PARAMS, train={"steps": 7})) == ""


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


def test_a_kept_stage_says_so_instead_of_a_time() -> None:
    assert line(StageRow("prepare", "cached", 1.2)) == "[blue]=[/] prepare kept"
    assert line(StageRow("train", "done", 61.0)) == "[green]✓[/] train 61 s"


def test_a_start_with_results_of_earlier_runs_is_not_called_clean(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    print_kept([], killed=False)
    assert "Starting clean" in capsys.readouterr().out
    Path(".dvc/cache/runs").mkdir(parents=True)
    print_kept([], killed=False)
    assert "is reused" in capsys.readouterr().out


def test_the_error_of_a_server_is_shown_without_a_password(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "INFO: begins\nsqlalchemy.exc.ArgumentError: no postgresql://a:secret@db/x\nend\n"
    )
    assert processes._last_error(log) == " (no postgresql://db/x)"
    log.write_text("INFO: begins\n")
    assert processes._last_error(log) == ""
