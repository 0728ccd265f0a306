"""The lines that a run prints."""

from __future__ import annotations

from pathlib import Path

from flows.chain import print_kept
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
