"""A project with a registered model that is copied or moved: what it reads afterwards."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from helpers.chain_runs import ROOT, in_folder
from typer.testing import CliRunner

from flows import pipeline
from tasks import paths
from tasks.config.params import Params
from tasks.errors import ConfigError, StageError
from tasks.registry import versions
from tasks.tracking import lineage, runs

MODEL = """
import mlflow

class Echo(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input):
        return [open(context.artifacts["model"] + "/model.safetensors").read()]

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
        tags[versions.FILES] = versions.files_hash(paths.MERGED)
        run.client.create_model_version(
            "rlm", logged.model_uri, run.run_id, tags, model_id=logged.model_id
        )
    return path


def rlm(*words: str) -> Result:
    return CliRunner().invoke(pipeline.app, words)


def refused(elsewhere: Path) -> str:
    """The message of a command in a project whose files are expected elsewhere."""
    store = Path("mlflow.db").read_bytes()
    told = rlm("models")
    assert told.exit_code == ConfigError.exit_code
    assert f"{elsewhere}/mlartifacts: this project was moved or copied" in told.output
    assert Path("mlflow.db").read_bytes() == store
    return told.output


def read() -> Any:
    """Answer of the first version, after a look at its weights' folder."""
    import mlflow

    mlflow.set_tracking_uri(runs.tracking_uri())
    folder = versions.download(versions.get_version("rlm", "1"))
    assert folder.resolve().is_relative_to(Path.cwd())
    assert (folder / "model.safetensors").read_text() == "weights"
    return mlflow.pyfunc.load_model("models:/rlm/1").predict([""])


def test_a_copy_is_refused_until_it_has_no_store(original: Path, tmp_path: Path) -> None:
    before = lineage.folder_hash(original)
    copy = shutil.copytree(original, tmp_path / "copy")
    with in_folder(copy):
        assert f"a copy, delete {copy}/mlflow.db and {copy}/mlartifacts" in refused(original)
        Path("mlflow.db").unlink()
        shutil.rmtree("mlartifacts")
        assert rlm("models").exit_code == 0
    assert lineage.folder_hash(original) == before


def test_a_moved_project_reads_its_files_after_the_command_of_the_refusal(original, tmp_path):
    moved = original.rename(tmp_path / "moved here")
    with in_folder(moved):
        subprocess.run(re.search("moved, run `(.+)`", refused(original))[1], shell=True, check=True)
        assert "1" in rlm("models").output
        assert read() == ["weights"]

        # Other settings beside the same weights are another model.
        folder = versions.download(versions.get_version("rlm", "1"))
        (folder / "config.json").write_text('{"rms_norm_eps": 1}')
        with pytest.raises(StageError, match="contains other files than were registered"):
            read()
        (folder / "config.json").unlink()

        with runs.stage_run("train", Params()) as run:
            run.log_artifact("params.yaml")
    assert list((moved / "mlartifacts").rglob("params.yaml"))
    original.unlink()
    moved.rename(original)
    with in_folder(original):
        assert read() == ["weights"]


def test_an_empty_store_is_no_new_one(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").touch()
    with pytest.raises(ConfigError, match=r"mlflow\.db is empty: .* without a champion"):
        runs.require_here(tmp_path / "mlflow.db")


def test_reading_a_version_writes_nothing_into_its_artifact(original: Path) -> None:
    before = lineage.folder_hash(original / "mlartifacts")
    with in_folder(original):
        versions.download(versions.get_version("rlm", "1"))
    assert lineage.folder_hash(original / "mlartifacts") == before


@pytest.mark.parametrize("moved", [True, False])
def test_make_setup_replaces_the_environment_of_another_folder_only(tmp_path, moved):
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
    assert ("Next: source .venv/bin/activate, then make full" in does.stdout) == moved
