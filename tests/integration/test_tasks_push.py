"""The stage `push` on a repository of its own: what is pushed, and what stops it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from dvc.repo import Repo

from flows import stages
from tasks.config.params import Params
from tasks.errors import StageError
from tasks.tracking import push, runs

PARAMS = Params()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_store: Path) -> Path:
    """A DVC repository that tracks one file, with a remote beside it."""
    monkeypatch.chdir(tmp_path)
    with Repo.init(no_scm=True) as repo:
        with repo.config.edit("repo") as config:
            config["remote"] = {PARAMS.push.remote: {"url": str(tmp_path / "remote")}}
        Path("data").write_text("rows")
        repo.add("data")
    return tmp_path


def pushed() -> float:
    """Files that the stage pushed."""
    with runs.stage_run("push", PARAMS) as run:
        push.run(PARAMS, run)
    metrics = run.client.get_run(run.run_id).data.metrics
    return float(metrics["push/files_pushed"])


def test_what_is_tracked_is_pushed_once(repository: Path) -> None:
    assert pushed() == 1
    assert [path.read_text() for path in (repository / "remote").rglob("*") if path.is_file()] == [
        "rows"
    ]
    assert pushed() == 0


def test_a_changed_output_is_not_pushed(repository: Path) -> None:
    Path("data").write_text("other rows")
    with pytest.raises(StageError, match=r"data\.dvc changed since their last run"):
        pushed()
    assert not (repository / "remote").exists()


def test_a_remote_that_cannot_be_written_is_named(repository: Path) -> None:
    with Repo(".") as repo, repo.config.edit("repo") as config:
        config["remote"][PARAMS.push.remote]["url"] = "/proc/no-such-remote"
    with pytest.raises(StageError, match=r"could not push to the remote .*no-such-remote.*remotes"):
        pushed()


HOLDS = """
import sys
from dvc.repo import Repo
with Repo(".") as repo, repo.lock:
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_full_disk_is_said_as_such_and_pushes_nothing(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("dvc_objects.fs.generic._try_links", full)
        with pytest.raises(StageError, match=r"^push: the disk is full"):
            pushed()
    assert not [path for path in (repository / "remote").rglob("*") if path.is_file()]
    assert pushed() == 1


def test_another_process_of_dvc_is_one_message(repository: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    try:
        with pytest.raises(StageError, match=r"push: Unable to acquire lock"):
            pushed()
        with pytest.raises(StageError, match=r"DVC status failed \(Unable to acquire"):
            stages.unchanged()
    finally:
        other.communicate()
