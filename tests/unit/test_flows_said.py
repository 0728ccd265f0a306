"""What a run says: its stages, and why a service did not start."""

from __future__ import annotations

from pathlib import Path

from flows.chain import print_kept
from flows.services import processes
from flows.summary import StageRow, line


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
