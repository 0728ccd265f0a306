"""The stage `push` on a repository of its own: what is pushed, and what stops it."""

import shutil
import subprocess
from pathlib import Path

import pytest
from dvc.repo import Repo

from flows import stages
from tasks import push
from tasks.config.params import Params
from tasks.errors import StageError
from tasks.tracking import runs

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
        with repo.config.edit("repo") as config:
            del config["core"]["no_scm"]  # the project has git, but an archive of it has not
    return tmp_path


def pushed() -> float:
    """Files that the stage pushed."""
    with runs.stage_run("push", PARAMS) as run:
        push.run(PARAMS, run)
    return float(run.client.get_run(run.run_id).data.metrics["push/files_pushed"])


def test_what_is_tracked_is_pushed_once(repository: Path) -> None:
    assert pushed() == 1
    copies = filter(Path.is_file, (repository / "remote").rglob("*"))
    assert [path.read_text() for path in copies] == ["rows"]
    assert pushed() == 0


def test_a_remote_that_is_gone_or_refuses_is_one_message(repository: Path) -> None:
    place = repository / "remote"
    place.symlink_to("/proc/version")  # no folder, for root neither
    with pytest.raises(StageError, match=r"remote 'local' .*dvc remote list"):
        pushed()
    with push.dvc_repo() as repo, repo.config.edit("repo") as config:
        config["remote"] = {"other": {"url": str(place)}}
    with pytest.raises(StageError, match=r"remote 'local' .*dvc remote list"):
        pushed()


def test_what_is_added_below_data_is_tracked(tmp_path: Path, monkeypatch) -> None:
    """DVC overlooks files in a folder that a pattern such as `/data/*` could ignore."""
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    shutil.copy(Path(__file__).parents[2] / ".gitignore", tmp_path)
    Path("data/own").mkdir(parents=True)
    with Repo.init() as repo:
        repo.add("data/own")
    with push.dvc_repo() as repo:
        assert [stage.path_in_repo for stage in repo.index.stages] == ["data/own.dvc"]


def test_a_changed_output_is_not_pushed(repository: Path) -> None:
    Path("data").write_text("other rows")
    with pytest.raises(StageError, match=r"data\.dvc records other data: `dvc add`"):
        stages.unchanged(PARAMS.push.remote)
    with pytest.raises(StageError, match=r"data\.dvc changed since their last run"):
        pushed()
    assert not (repository / "remote").exists()
