"""How a chain runs and ends, and what it leaves: Prefect, DVC and MLflow around toy stages."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psutil
import pytest
from helpers import toy_chain
from helpers.chain_runs import environments, flow_runs, in_folder, runs
from helpers.sandbox_events import wait_for

from env import variables
from flows import stages
from flows.services import processes
from tasks import config, paths
from tasks.config.params import Params
from tasks.errors import GateFailed, PipelineError, StageError
from tasks.tracking import runs as tracking

pytestmark = pytest.mark.xdist_group("prefect")
FEW = "prepare.synthetic.collections={train: 2, validation: 1, test: 2}"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_store: Path) -> Iterator[Path]:
    """A folder in which toy chains are played."""
    toy_chain.write(tmp_path, stages.BY_DVC)
    monkeypatch.setenv("PYTHONPATH", str(toy_chain.ROOT))
    with in_folder(tmp_path):
        yield tmp_path


def test_a_failed_stage_and_a_refusing_gate_end_the_flow_in_own_words(
    prefect_url, project, capfd, monkeypatch
):
    from flows.chain import play

    before, started = environments(), datetime.now(UTC)
    with pytest.raises(StageError, match="validate: "):
        play("quick", ["validate.min_rows=100000"])
    assert "✗ validate" in capfd.readouterr().out
    assert "min_rows" in runs("validate")[0].data.tags["error"]
    (failed,) = flow_runs(prefect_url, "Failed", started)
    assert "validate: " in failed["state"]["message"]

    # The next run goes on where that one ended.
    assert play("quick", ["warmstart.kind=none", FEW]) == GateFailed.exit_code
    told = capfd.readouterr().out
    assert "Resuming at validate; kept unchanged: prepare." in told
    assert "= prepare" in told
    assert runs("prepare")[0].data.tags["cached"] == "true"
    (ended,) = flow_runs(prefect_url, "Gated", started)
    assert ended["state"]["type"] == "FAILED"
    assert ended["state"]["message"] == toy_chain.ADVICE
    parent = runs("rlm-quick")[0]
    assert parent.info.status == "FAILED"
    assert parent.data.tags["advice"] == toy_chain.ADVICE
    gate = runs("gate")[0]
    assert gate.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert gate.info.status == "FAILED"
    assert not (project / "out/train").exists()
    assert environments() == before
    assert "RLM_ENV_URL" not in os.environ
    wanted = {"task_runs": {"flow_run_id": {"any_": [ended["id"]]}}}

    def prepare_is_cached() -> bool:
        tasks = httpx.post(f"{prefect_url}/task_runs/filter", json=wanted).json()
        states = {task["name"].partition("-")[0]: task["state"]["name"] for task in tasks}
        return states.get("prepare") == "Cached"

    assert wait_for(prepare_is_cached)  # the server learns of tasks a moment later
    advices = {"dvc.lock": "git checkout --ours", "dvc.yaml": "git diff", ".dvc/config": "See"}
    for damaged, advice in {**advices, ".dvc/tmp/rwlock": "delete"}.items():
        content = Path(damaged).read_text()
        Path(damaged).write_text(f"<<<<<<< HEAD\n{content}")
        with pytest.raises(StageError, match=rf"{advice} {damaged}"):
            stages.unchanged("local")
        Path(damaged).write_text(content)
    monkeypatch.setitem(sys.modules, "dvc_s3", None)
    subprocess.run(["dvc", "remote", "add", "shared", "s3://bucket/rlm"], check=True)
    for remote, advice in (("shard", "`dvc remote list`"), ("shared", "`pip install --constraint")):
        with pytest.raises(PipelineError, match=advice):
            stages.unchanged(remote)


def test_an_interrupt_stops_everything_and_says_how_to_go_on(project):
    """Of a run with a Prefect server of its own, which has recorded it until then."""
    (project / toy_chain.SLOW).touch()
    elsewhere = {*processes.DATABASES, "PREFECT_API_URL"}
    command = [sys.executable, "-m", "flows.pipeline", "run"]
    chain = subprocess.Popen(
        [*command, "--profile", "quick", "--set", "validate.min_rows=6"],
        env={name: value for name, value in os.environ.items() if name not in elsewhere},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    told = ""
    while f"2/{len(stages.STAGES)} validate" not in told:
        told += (line := chain.stdout.readline())
        assert line, told
    (port,) = processes._ports_of_single_runs()
    assert httpx.get(f"http://127.0.0.1:{port}/api/admin/settings").status_code == 401
    while not (project / "started").exists():  # into the stage's command
        assert chain.poll() is None, told
        time.sleep(0.1)
    started = psutil.Process(chain.pid).children(recursive=True)
    assert any(toy_chain.__file__ in process.cmdline() for process in started)
    chain.terminate()  # to `guarded`, as Ctrl-C
    told += chain.stdout.read()
    assert chain.wait(timeout=60) == stages.INTERRUPTED
    assert "Interrupted. Finished stages are kept; continue with: rlm run" in told
    assert "run --profile quick --set validate.min_rows=6" in told
    assert [process for process in started if process.is_running()] == []
    assert runs("rlm-quick")[0].info.status == "KILLED"
    with closing(sqlite3.connect(".run/prefect.db")) as server:
        tasks = server.execute("SELECT name, state_name FROM task_run").fetchall()
        lines = [line for (line,) in server.execute("SELECT message FROM log")]
    assert {name.partition("-")[0]: state for name, state in tasks}["prepare"] == "Cached"
    assert any(line.startswith("1/14 prepare") for line in lines)


def orphan(chain: str) -> psutil.Process:
    """A process with a chain's mark whose parent is gone, so it is not a child of this one."""
    told = subprocess.check_output(
        ["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"],
        env={**os.environ, variables.CHAIN: chain},
    )
    return psutil.Process(int(told))


def ended(process: psutil.Process) -> bool:
    """Whether it ended, even where nobody takes note of the ends of orphans."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_what_a_killed_chain_left_is_stopped_and_said(project, capfd):
    from flows import chain

    gone = subprocess.Popen(["true"])
    gone.wait()
    left = orphan(str(gone.pid))
    params = Params()
    parent = tracking.start_run("rlm-nano", params)
    child = tracking.start_run("train", params, parent.run_id)
    paths.RUN.mkdir(exist_ok=True)
    chain.MARK.write_text(json.dumps({"run_id": parent.run_id, "process": str(gone.pid)}))
    with subprocess.Popen("cat", stdin=subprocess.PIPE) as other:
        chain.print_kept([], chain.clean_after_killed_run())
        assert ended(left)
        assert other.poll() is None
    assert "The last run was killed" in capfd.readouterr().out
    assert not chain.MARK.exists()
    for run in (parent, child):
        assert run.client.get_run(run.run_id).info.status == "KILLED"
    assert chain.clean_after_killed_run() is False


def test_a_killed_chain_of_our_own_number_left_nothing_that_we_started() -> None:
    number = str(os.getpid())
    left = orphan(number)
    marked = {**os.environ, variables.CHAIN: number}
    with subprocess.Popen("cat", stdin=subprocess.PIPE, env=marked) as own:
        assert stages.stop_leftovers(number) == 1
        assert ended(left)
        assert own.poll() is None


def test_a_stage_that_was_killed_is_closed_by_its_chain(project, monkeypatch):
    from flows import chain

    params = Params()
    parent = tracking.start_run("rlm-nano", params)
    monkeypatch.setenv(variables.PARENT_RUN, parent.run_id)
    begun = []

    def killed(name: str) -> None:
        begun.append(tracking.start_run(name, params, parent.run_id))
        raise StageError(f"{name}: command failed (exit code -9). See its output above.")

    monkeypatch.setattr(stages, "reproduce", killed)
    with pytest.raises(StageError, match="exit code -9"):
        chain._stage.fn("train", params)
    (child,) = begun
    assert child.client.get_run(child.run_id).info.status == "KILLED"
    parent.end("FAILED")


@pytest.mark.parametrize("command", ["resolve", "prepare"])
def test_nothing_by_hand_touches_a_folder_where_a_run_works(project, monkeypatch, command):
    from typer.testing import CliRunner

    from flows import pipeline
    from flows.runtime import exclusive

    ran: list[str] = []
    monkeypatch.setattr(pipeline, "run_stage", ran.append)
    before = config.write_resolved(Params()).read_text()
    for left in ("models/.base.123", "models/.merged.4.old", "models/.bare", "models/.cache.1"):
        Path(left).mkdir(parents=True)
    with exclusive():
        # What a killed stage left is gone; its old output has its name again.
        assert {path.name for path in Path("models").iterdir()} == {".bare", ".cache.1", "merged"}
        told = CliRunner().invoke(pipeline.app, [command])
        assert (told.exit_code, ran) == (1, [])
        assert f"another run works in this folder (process {os.getpid()} on " in told.output
        assert config.RESOLVED.read_text() == before
        # A stage that this very run started by DVC.
        monkeypatch.setenv(variables.CHAIN, "1")
        CliRunner().invoke(pipeline.app, [command])
        assert ran == (["prepare"] if command == "prepare" else [])
    monkeypatch.delenv(variables.CHAIN)
    assert CliRunner().invoke(pipeline.app, [command]).exit_code == 0
