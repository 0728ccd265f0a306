"""A project with a registered model that is copied or moved: what it reads afterwards."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from helpers.chain_runs import in_folder
from typer.testing import CliRunner

from flows import cli, pipeline
from flows.services import __main__ as services
from flows.services import processes
from tasks.config.params import Params
from tasks.errors import ConfigError, StageError
from tasks.registry import versions
from tasks.tracking import lineage, locations, runs

ROOT = Path(__file__).parents[2]
MODEL = """
import mlflow

class Echo(mlflow.pyfunc.PythonModel):
    def load_context(self, context):
        self.weights = open(context.artifacts["model"] + "/model.safetensors").read()

    def predict(self, context, model_input):
        return [self.weights]

mlflow.models.set_model(Echo())
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A project with one registered model."""
    import mlflow

    path = tmp_path_factory.mktemp("a project") / "original"
    (path / "models/merged").mkdir(parents=True)
    (path / "models/merged/model.safetensors").write_text("weights")
    (path / "model.py").write_text(MODEL)
    shutil.copy(empty_store, path)
    shutil.copy(ROOT / "params.yaml", path)
    with in_folder(path), runs.stage_run("register", Params()) as run:
        with mlflow.start_run(run_id=run.run_id):
            logged = mlflow.pyfunc.log_model(
                name="rlm",
                python_model="model.py",
                artifacts={"model": "models/merged"},
                pip_requirements=[],
            )
        run.client.create_registered_model("rlm")
        tags = {"weights_hash": versions.weights_hash(versions.MERGED)}
        run.client.create_model_version(
            "rlm", logged.model_uri, run.run_id, tags, model_id=logged.model_id
        )
    return path


def rlm(*words: str) -> Result:
    return CliRunner().invoke(pipeline.app, words)


def read() -> Any:
    """Answer of the first version, after a look at its weights' folder."""
    import mlflow

    mlflow.set_tracking_uri(runs.tracking_uri())
    folder = versions.download(versions.get_version("rlm", "1"))
    assert folder.is_relative_to(Path.cwd())
    assert (folder / "model.safetensors").read_text() == "weights"
    return mlflow.pyfunc.load_model("models:/rlm/1").predict([""])


def test_a_copy_and_a_moved_copy_read_their_own_files_after_one_command(
    original: Path, tmp_path: Path
) -> None:
    before = lineage.folder_hash(original)
    for place, earlier in (("copy", original), ("moved here", tmp_path / "copy")):
        path = tmp_path / place
        shutil.copytree(earlier, path)
        if earlier != original:
            shutil.rmtree(earlier)
        store = (path / "mlflow.db").read_bytes()
        with in_folder(path):
            told = rlm("models")
            assert told.exit_code == ConfigError.exit_code
            assert f"{earlier}/mlartifacts: this project was moved or copied" in told.output
            assert "Run `rlm relocate` once" in told.output
            assert (path / "mlflow.db").read_bytes() == store
            assert rlm("relocate").exit_code == 0
            assert (path / "mlflow.db.before-relocate").is_file()
            assert "1" in rlm("models").output
            assert read() == ["weights"]
            with runs.stage_run("train", Params()) as run:
                run.log_artifact("params.yaml")
            assert "Nothing to relocate" in rlm("relocate").output
        assert list((path / "mlartifacts").rglob("params.yaml"))
    assert lineage.folder_hash(original) == before
    with in_folder(original):
        assert read() == ["weights"]


def test_reading_a_version_writes_nothing_into_its_artifact(original: Path) -> None:
    def written() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (original / "mlartifacts").rglob("*")}

    before = written()
    with in_folder(original):
        versions.download(versions.get_version("rlm", "1"))
    assert written() == before


def test_a_folder_without_a_store_is_left_empty(tmp_path: Path) -> None:
    with in_folder(tmp_path):
        told = rlm("relocate")
    assert told.exit_code == ConfigError.exit_code
    assert "mlflow.db does not exist. Run this in a project that has one." in told.output
    assert told.output.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_copy_without_its_files_is_left_as_it_is(original: Path, tmp_path: Path) -> None:
    store = Path(shutil.copy(original / "mlflow.db", tmp_path))
    with pytest.raises(StageError, match=f"Copy {original}/mlartifacts to this folder"):
        locations.relocate(store)
    assert store.read_bytes() == (original / "mlflow.db").read_bytes()


def test_a_store_that_cannot_be_read_is_not_called_relocated(tmp_path: Path) -> None:
    store = tmp_path / "mlflow.db"
    store.write_bytes(b"garbage" * 100)
    with pytest.raises(StageError, match="restore it"):
        locations.relocate(store)
    assert store.read_bytes() == b"garbage" * 100


def test_servers_do_not_start_on_the_store_of_another_folder(
    original: Path, tmp_path: Path
) -> None:
    shutil.copy(original / "mlflow.db", tmp_path)
    with in_folder(tmp_path), pytest.raises(ConfigError, match="rlm relocate"):
        services.up()


def test_a_copied_pid_file_names_no_service_of_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper = ["python", "-c", "import time; time.sleep(60)"]
    service = processes.ServiceProcess("sleeper", sleeper)
    for place in ("original", "copy"):
        (tmp_path / place / ".run").mkdir(parents=True)
    process = subprocess.Popen([sys.executable, *sleeper[1:]], cwd=tmp_path / "original")
    try:
        for place, found in (("original", process.pid), ("copy", None)):
            monkeypatch.chdir(tmp_path / place)
            Path(".run/sleeper.pid").write_text(str(process.pid))
            assert processes.running(service) == found
    finally:
        process.kill()
        process.wait()


def test_the_command_of_another_project_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "flows").mkdir()
    shutil.copy(ROOT / "flows/cli.py", tmp_path / "flows")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=str(ConfigError.exit_code)):
        cli.require_own_code()
    assert f"that of {ROOT}, not of this project. Run `make setup` here" in capsys.readouterr().err
    monkeypatch.chdir(ROOT)
    cli.require_own_code()


@pytest.mark.parametrize("moved", [True, False])
def test_make_setup_replaces_the_environment_of_another_folder_only(
    tmp_path: Path, moved: bool
) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/.ready").touch()
    home = tmp_path / "before" if moved else tmp_path
    (tmp_path / ".venv/pyvenv.cfg").write_text(f"command = python3 -m venv {home}/.venv\n")
    does = subprocess.run(
        ["make", "--dry-run", "setup"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ("\npython3 -m venv --clear .venv" in does.stdout) == moved
