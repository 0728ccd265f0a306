"""Records of a stage in MLflow and their lineage, on a real store in a temporary folder."""

import errno
import json
import re
import shutil
import sqlite3
import subprocess
import traceback
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from mlflow.exceptions import MlflowException

from env import variables
from flows.services import __main__ as services
from tasks import evaluate, gate
from tasks.config.params import Params
from tasks.errors import ConfigError, GateFailed, StageError
from tasks.registry import versions
from tasks.tracking import lineage, runs
from tasks.tracking.runs import StageRun, stage_run

PARAMS = Params()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> str:
    return f"sqlite:///{shutil.copy(empty_store, tmp_path_factory.mktemp('mlflow'))}"


@pytest.fixture(autouse=True)
def _here(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    monkeypatch.delenv(variables.PARENT_RUN, raising=False)
    monkeypatch.chdir(tmp_path)


def stored(run: StageRun) -> Any:
    return run.client.get_run(run.run_id)


def test_a_run_knows_what_it_takes_to_repeat_it(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/deployment.json").write_text('{"sandbox": ["seccomp", "rlimits"]}')
    (tmp_path / "data/problems").mkdir(parents=True)
    (tmp_path / "data/problems/train.parquet").write_bytes(b"rows")
    params = Params.model_validate({"prepare": {"synthetic": {"seed": 5}}})
    with stage_run("prepare", params) as run:
        pass
    data = stored(run).data
    assert (data.tags["stage"], data.tags["seed"]) == ("prepare", "5")
    rest = json.loads(data.tags["lineage"])
    assert rest["sandbox"] == "seccomp,rlimits"
    assert data.tags["data_hash"] == lineage.folder_hash(Path("data/problems"))
    assert rest["params_hash"] == lineage.params_hash(params)
    assert data.tags["commit"]
    assert rest["versions"]["torch"].startswith("2.13.0")
    assert data.params == {"profile": "nano", "prepare.synthetic.seed": "5"}
    assert re.match(r"\d\d-\d\d \d\d:\d\d prepare$", stored(run).info.run_name)


def test_a_run_that_is_killed_while_it_is_described_is_found(monkeypatch):
    begun: list[str] = []
    parent = runs.start_run("rlm", PARAMS)
    monkeypatch.setattr(runs.StageRun, "log_params", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        runs.start_run("gate", PARAMS, parent.run_id, begun=begun.append)
    assert [runs.find_child(parent.run_id, "gate").info.run_id] == begun


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (StageError("no disk"), "FAILED", "gate: no disk"),
        (ConfigError("no disk"), "FAILED", "gate: no disk"),
        (GateFailed("no disk"), "FAILED", "no disk"),  # advice as it is
        (ValueError("no disk"), "FAILED", "no disk"),
        (KeyboardInterrupt(), "KILLED", None),
    ],
)
def test_a_run_ends_as_its_stage_did_and_tells_its_error(error, status, told):
    begun: list[StageRun] = []

    def stage() -> None:
        with stage_run("gate", PARAMS) as run:
            begun.append(run)
            run.log_metrics({"reward/overall": 0.5}, step=1)
            raise error

    with pytest.raises(type(error), match=f"^{told or ''}$"):
        stage()
    (run,) = begun
    assert stored(run).info.status == status
    # Measurements from before the end are there, whatever the end.
    assert stored(run).data.metrics["reward/overall"] == 0.5
    assert stored(run).data.tags.get("error") == told


@pytest.mark.parametrize("begin", [lambda: runs.start_run("rlm", PARAMS), services.up])
def test_a_store_of_another_version_stops_in_one_line(store, tmp_path, monkeypatch, begin):
    with sqlite3.connect(shutil.copy(store.removeprefix("sqlite:///"), tmp_path)) as other:
        other.execute("UPDATE experiments SET artifact_location = ''")
        other.execute("UPDATE alembic_version SET version_num = 'x'")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setattr(services.processes, "start", lambda service: pytest.fail(service.name))
    told = r"^MLflow at sqlite:///mlflow\.db is of another version of MLflow\..*`mlflow db upgrade"
    with pytest.raises(StageError, match=told):
        begin()


def test_tables_grow_and_artifacts_are_kept_beside_the_store(store: str, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/inner.txt").write_text("x")
    with stage_run("train", PARAMS) as run:
        run.log_table([{"step": 1, "text": "a"}, {"step": 1, "text": "b"}], "episodes")
        run.log_table([{"step": 2, "text": "c"}], "episodes")
        run.log_table([], "episodes")
        run.log_artifact("note.txt")
        run.log_artifact(tmp_path / "folder")
    files = {item.path for item in run.client.list_artifacts(run.run_id)}
    assert files == {"tables", "note.txt", "folder"}
    kept = Path(stored(run).info.artifact_uri.removeprefix("file://"))
    assert kept.is_relative_to(Path(store.removeprefix("sqlite:///")).parent / "mlartifacts")
    table = json.loads((kept / "tables/episodes.json").read_text())
    assert table == {"columns": ["step", "text"], "data": [[1, "a"], [1, "b"], [2, "c"]]}


def test_a_killed_run_is_closed_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = runs.start_run("rlm", PARAMS)
    monkeypatch.setenv(variables.PARENT_RUN, parent.run_id)
    with stage_run("prepare", PARAMS) as done:
        pass
    running = runs.start_run("train", PARAMS, parent.run_id)
    runs.close_left(parent.run_id)
    ended = [stored(run).info.status for run in (parent, done, running)]
    assert ended == ["KILLED", "FINISHED", "KILLED"]
    for gone in ("0" * 32, "no run's/id"):  # of another store, of a damaged file
        runs.close_left(gone)


def test_numbers_go_in_batches_and_wait_for_a_store_that_fails(caplog):
    gone = mock.Mock(side_effect=MlflowException("database is locked\nand a page more"))
    calls = dict.fromkeys(("log_batch", "log_table", "log_artifact", "log_inputs"), gone)
    with stage_run("train", PARAMS) as run:
        with mock.patch.multiple(run.client, **calls):
            for step in range(250):
                run.log_metrics({"reward/overall": step / 250}, step=step)
            run.log_table([{"step": 1}], "episodes")
            run.set_tags({"curriculum": "hard"})
        assert sum("metrics" in call.kwargs for call in gone.call_args_list) == 1
        (told,) = (text for name, _, text in caplog.record_tuples if name == "tasks.tracking.runs")
        assert "database is locked" in told
        assert "a page more" not in told
    history = run.client.get_metric_history(run.run_id, "reward/overall")
    assert [point.value for point in history] == [i / 250 for i in range(250)]
    assert stored(run).info.status == "FINISHED"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://u:hunter2@127.0.0.1:9", "http://127.0.0.1:9"),
        ("https://u:hun@ter2@mlflow.example/team", "https://mlflow.example/team"),
        ("https://hunter2@mlflow.example", "https://mlflow.example"),
        ("postgresql+psycopg2://u:hunter2/@db:5432/mlflow", "postgresql+psycopg2://db:5432/mlflow"),
        ("postgresql://db/mlflow?user=u&password=hunter2", "postgresql://db/mlflow"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("sqlite:////home/u@work/mlflow.db", "sqlite:////home/u@work/mlflow.db"),
    ],
)
def test_an_address_is_shown_without_its_password(monkeypatch, uri, shown):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert runs.shown_uri() == shown


@pytest.mark.parametrize("kind", ["postgresql+psycopg", "postgresql", "mysql", "mssql"])
def test_a_database_is_refused_as_a_tracking_server(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"names a database \(\w+.*://db/mlflow\)") as found:
        runs.client(f"{kind}://user:secret@db/mlflow")
    assert "secret" not in str(found.value)


def test_a_password_stands_in_no_message(monkeypatch, caplog):
    from flows import notifications

    with stage_run("train", PARAMS) as run:
        pass
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://u:hunter2@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(StageError, match=r"MLflow at http://127\.0\.0\.1:9 ") as begun:
        runs.start_run("train", PARAMS)
    with pytest.raises(StageError, match=r"MLflow at http://127\.0\.0\.1:9 ") as asked:
        versions.champion("rlm")
    StageRun(runs.client(runs.tracking_uri()), run.run_id).set_tags({"curriculum": "hard"})
    monkeypatch.setattr(runs, "experiment_id", lambda name: "1")
    # Errors as a log has them, causes included.
    raised = ["".join(traceback.format_exception(error.value)) for error in (begun, asked)]
    told = [*raised, caplog.text, notifications.run_url(run)]
    assert [text for text in told if "127.0.0.1:9" not in text or "hunter2" in text] == []


FILE = r"the disk is full \(at reports/x\.json; free now: .*run the same command again"
FULL = {
    OSError(errno.ENOSPC, "", "reports/x.json"): FILE,
    OSError(errno.EDQUOT, "", "reports/x.json"): FILE,
    RuntimeError("basic_ios::clear: iostream error"): FILE.replace(r"at reports/x\.json; ", ""),
    torch.OutOfMemoryError("CUDA says 15 GiB"): r"the GPU has no memory left.*\(CUDA says 15 GiB\)",
}


@pytest.mark.parametrize("error", FULL)
def test_a_full_disk_or_card_is_one_message_and_ends_the_run_of_its_stage(error):
    told = f"^evaluate: {FULL[error]}"
    with pytest.raises(StageError, match=told), stage_run("evaluate", PARAMS) as run:
        raise error
    assert stored(run).info.status == "FAILED"
    assert re.match(told, stored(run).data.tags["error"])


def test_each_stage_is_recorded_with_its_own_seed() -> None:
    own = {"prepare": {"synthetic": {"seed": 1}}, "warmstart": {"nano": {"seed": 2}}}
    params = Params.model_validate({**own, "train": {"seed": 4}})
    seeds = {"prepare": 1, "warmstart": 2, "zeroshot": gate.SEED, "gate": gate.SEED, "train": 4}
    seeds |= {"evaluate": evaluate.SEED, "push": 4}
    assert {stage: lineage.seed_of(params, stage) for stage in seeds} == seeds


def test_a_commit_is_dirty_by_changed_sources_and_not_by_new_files(tmp_path: Path) -> None:
    assert lineage.commit.__wrapped__() == "no git"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (tmp_path / "code.py").write_text("first")
    subprocess.run([*git, "init", "-q"], check=True)
    assert lineage.commit.__wrapped__() == "no commits"
    for words in (["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    clean = lineage.commit.__wrapped__()
    assert len(clean) == 40
    (tmp_path / "notes.txt").write_text("untracked")
    assert lineage.commit.__wrapped__() == clean
    (tmp_path / "code.py").write_text("changed")
    assert lineage.commit.__wrapped__() == f"{clean}-dirty"
