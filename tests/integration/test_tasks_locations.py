"""A project with a registered model that is copied or moved: what it reads afterwards."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from helpers.chain_runs import in_folder
from typer.testing import CliRunner

from flows import pipeline
from tasks import paths
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
        tags = {"weights_hash": versions.weights_hash(paths.MERGED)}
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


def test_a_copy_without_its_files_is_left_as_it_is(original: Path, tmp_path: Path) -> None:
    store = Path(shutil.copy(original / "mlflow.db", tmp_path))
    with pytest.raises(StageError, match=f"Copy {original}/mlartifacts to this folder"):
        locations.relocate(store)
    assert store.read_bytes() == (original / "mlflow.db").read_bytes()


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
