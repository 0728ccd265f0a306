"""The checklist: each point on this repository, and what leaves a point open."""

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows import checklist, cli


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty git repository."""
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    return tmp_path


def test_faults_leave_their_points_open(repository: Path) -> None:
    (repository / "README.md").write_text("[there](README.md), [gone](docs/gone.md#part)")
    assert checklist.links() == ("open", "2 links, broken: ['docs/gone.md']")
    (repository / "weights.bin").write_bytes(bytes(11_000_000))
    subprocess.run(["git", "add", "."], check=True)
    assert checklist.large_files() == ("open", "the largest tracked file is weights.bin, 11.0 MB")
    assert checklist.plots() == ("open", "none; run make figures, and commit plots/")


def test_the_command_succeeds_where_no_point_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checklist.notebook()[0] == "stand-in"
    points = {"one": lambda: ("met", "it is there"), "other": lambda: ("stand-in", "nearly")}
    monkeypatch.setattr(checklist, "POINTS", points)
    told = CliRunner().invoke(cli.app, ["checklist"])
    assert told.exit_code == 0
    assert "nearly" in told.output
    assert "Asked, done, why otherwise" in told.output


def test_a_damaged_report_leaves_only_its_point_open(repository, monkeypatch):
    (repository / "reports").mkdir()
    (repository / "reports/evaluation.json").write_text('{"n": ')
    names = ["before and after", "four defended components", "Space is live"]
    monkeypatch.setattr(checklist, "POINTS", {name: checklist.POINTS[name] for name in names})
    done = CliRunner().invoke(cli.app, ["checklist"])
    assert done.exit_code == 1, done.exception
    told = " ".join(done.stdout.replace("│", " ").split())
    assert "reports/evaluation.json is damaged. Run `rlm evaluate` again." in told
    assert "params.yaml does not exist" in told
    assert "reports/deployment.json is missing. Run `rlm deploy` first." in told
