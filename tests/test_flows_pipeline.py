"""The chain as a whole: what runs when, how it ends, and what it leaves."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from env.settings import flatten
from flows import stages
from tasks import config, tracking
from tasks.config import Params
from tasks.errors import GateFailed, StageError

ROOT = Path(__file__).parent.parent
CODE = (
    "agent",
    "env",
    "flows",
    "mlflow",
    "profiles",
    "rewards",
    "tasks",
    ".dvc/config",
    ".dvcignore",
)
FILES = ("dvc.yaml", "params.yaml", "constraints.txt")
UNTAUGHT = ["warmstart.kind=none", "gate.episodes=2", "gate.max_episodes=4"]
DVC = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


# --- the command line ---


def test_help_needs_nothing_heavy() -> None:
    heavy = ("torch", "prefect", "mlflow", "openenv", "dvc", "pandas", "great_expectations")
    code = f"import sys, flows.pipeline; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def commands() -> set[str]:
    from flows.pipeline import app

    return {str(item.name or item.callback.__name__) for item in app.registered_commands}  # type: ignore[union-attr]


def test_each_stage_is_a_command_and_a_module() -> None:
    assert commands() == {*stages.STAGES, "run", "resolve", "check-problems", "models", "rollback"}
    for name in stages.STAGES:
        assert (ROOT / f"tasks/{name}.py").is_file(), name


@pytest.mark.parametrize("kind", ["make", "python -m flows.pipeline"])
def test_every_command_stands_in_the_readme(kind: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    if kind == "make":
        names = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.M))
        missing = [name for name in names if f"make {name}" not in readme]
    else:
        assert f"{kind} run" in readme
        missing = [name for name in commands() if not re.search(rf"`[^`]*\b{name}\b", readme)]
    assert missing == []


# --- DVC's description against the code ---


def test_dvc_knows_the_stages_of_the_chain_and_no_others() -> None:
    assert tuple(DVC) == stages.BY_DVC
    for name, stage in DVC.items():
        assert stage["cmd"] == f"python -m flows.pipeline {name}"


def test_what_dvc_depends_on_exists_or_is_made_by_an_earlier_stage() -> None:
    made: set[str] = set()
    derived = config.derive(Params())
    for name, stage in DVC.items():
        for dependency in stage["deps"]:
            path = ROOT / derived.get(dependency.strip("${}").removeprefix("derived."), dependency)
            assert path.exists() or dependency in made, (name, dependency)
            if dependency.startswith(("data", "models", "reports")):
                assert dependency in made, (name, dependency)
        outs = [*stage.get("outs", []), *stage.get("metrics", []), *stage.get("plots", [])]
        made |= {next(iter(out)) if isinstance(out, dict) else out for out in outs}


def test_dvc_watches_all_code_that_a_stage_runs() -> None:
    import grimp

    graph = grimp.build_graph(
        "agent", "env", "rewards", "tasks", exclude_type_checking_imports=True
    )
    # Settings are watched as values; these modules carry results without deciding them.
    passive = re.compile(
        r"(.*\.settings|env\.(models|errors)|env\.problems\.schema"
        r"|tasks\.(config|datasets|deploy|errors|lineage|outputs|progress|register|traces|tracking"
        r"|version)"
        # Where the environment runs is no input of what is measured with it.
        r"|tasks\.(answers|container|hub|local_server|space|space_problems|staging))$"
    )
    for name, stage in DVC.items():
        watched = [dependency.removesuffix(".py") for dependency in stage["deps"]]
        for module in {f"tasks.{name}", *graph.find_upstream_modules(f"tasks.{name}")}:
            path = module.replace(".", "/")
            seen = any(path == place or path.startswith(f"{place}/") for place in watched)
            assert seen or passive.match(module), f"{name} runs {module}, dvc.yaml does not say so"


def test_dvc_watches_all_settings_that_a_stage_reads() -> None:
    # How fast and where, not what; the environment's own settings are watched as sections.
    free = {"threads", "tracking", "env.max_sessions"}
    for name, stage in DVC.items():
        watched = {key for part in stage["params"] for key in part["params.resolved.yaml"]}
        tree = ast.parse((ROOT / f"tasks/{name}.py").read_text())
        for node in ast.walk(tree):
            path = dotted(node)
            if path is None or path in free or path.split(".")[0] in free:
                continue
            prefixes = {path.rsplit(".", cut)[0] for cut in range(path.count(".") + 1)}
            deeper = any(key.startswith(f"{path}.") for key in watched)
            assert prefixes & watched or deeper, f"{name} reads {path}, dvc.yaml does not say so"


def dotted(node: ast.AST) -> str | None:
    """`params.env.limits` as `env.limits`; None for anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr.rstrip("_"))
        node = node.value
    found = isinstance(node, ast.Name) and node.id == "params" and names
    return ".".join(names).removesuffix(".model_dump") if found else None


def test_each_section_that_dvc_watches_is_a_setting() -> None:
    known = flatten(Params().model_dump(by_alias=True, mode="json"))
    for stage in DVC.values():
        for key in (key for part in stage["params"] for key in part["params.resolved.yaml"]):
            assert any(name == key or name.startswith(f"{key}.") for name in known), key


# --- the chain on Prefect's own server ---

# Each plays many commands; the limit is for a busy machine.
patient = pytest.mark.timeout(1500)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the project's code, without git, in which chains are played."""
    path = tmp_path_factory.mktemp("project")
    for name in CODE:
        source, target = ROOT / name, path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    for name in FILES:
        shutil.copy(ROOT / name, path)
    (path / ".dvc/config.local").write_text("[core]\n    no_scm = true\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}/mlflow.db")
        patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        for name in ("RLM_ENV_URL", stages.CHAIN, tracking.PARENT_RUN):
            patch.delenv(name, raising=False)
        yield path
        os.environ.pop(stages.CHAIN, None)


def runs(name: str) -> list[Any]:
    """MLflow runs with a tag `stage`, the newest first."""
    store = tracking.client(tracking.tracking_uri())
    found = store.search_runs([tracking.experiment_id("rlm")], f"tags.stage = '{name}'")
    return list(found)


def flow_runs(url: str, state: str) -> list[dict[str, Any]]:
    wanted = {"flow_runs": {"state": {"name": {"any_": [state]}}}}
    answer = httpx.post(f"{url}/flow_runs/filter", json=wanted)
    return list(answer.raise_for_status().json())


def environments() -> list[str]:
    """Command lines of environment servers that this process started and that still run."""
    lines = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    return [line for line in lines if "env.server.app" in line]


@patient
def test_a_base_without_any_reward_ends_gated(prefect_url: str, project: Path) -> None:
    from flows.chain import play

    before = environments()
    assert play("quick", UNTAUGHT) == GateFailed.exit_code
    advice = json.loads((project / "reports/gate.json").read_text())["advice"]
    (ended,) = flow_runs(prefect_url, "Gated")
    assert ended["state"]["type"] == "FAILED"
    assert ended["state"]["message"] == advice
    parent = runs("rlm-quick")[0]
    assert parent.info.status == "FAILED"
    assert parent.data.tags["advice"] == advice
    gate = runs("gate")[0]
    assert gate.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert gate.info.status == "FAILED"
    assert not (project / "models/adapter").exists()
    assert environments() == before
    assert "RLM_ENV_URL" not in os.environ


@patient
def test_a_failed_stage_ends_the_flow_with_its_own_words(
    prefect_url: str, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from flows.chain import play

    settings = [*UNTAUGHT, "validate.min_rows=100000"]
    config.write_resolved(config.resolve("quick", settings))
    stages.reproduce("prepare")
    with pytest.raises(StageError, match="validate: "):
        play("quick", settings)
    told = capfd.readouterr().out
    assert "Resuming at validate; kept unchanged: prepare." in told
    assert "= prepare" in told
    assert "✗ validate" in told
    assert runs("prepare")[0].data.tags["cached"] == "true"
    assert "min_rows" in runs("validate")[0].data.tags["error"]
    (ended,) = flow_runs(prefect_url, "Failed")
    assert "validate: " in ended["state"]["message"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_everything_and_says_how_to_go_on(
    prefect_url: str, project: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "flows.pipeline", "run"]
    chain = subprocess.Popen(
        [*command, "--profile", "quick", "--set", "validate.min_rows=6"],
        env={**os.environ, "PREFECT_API_URL": prefect_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert chain.stdout is not None
    told = ""
    while f"1/{len(stages.STAGES)} prepare" not in told:
        told += (line := chain.stdout.readline())
        assert line, told
    time.sleep(3)  # into the stage's command
    started = psutil.Process(chain.pid).children(recursive=True)
    chain.send_signal(number)
    told += chain.stdout.read()
    assert chain.wait(timeout=60) == stages.INTERRUPTED
    assert "Interrupted. Finished stages are kept; go on with: python -m" in told
    assert "run --profile quick --set validate.min_rows=6" in told
    assert [process for process in started if process.is_running()] == []
    assert runs("rlm-quick")[0].info.status == "KILLED"


def orphan(chain: str) -> psutil.Process:
    """A process that carries a chain's mark and is no child of ours: its parent is gone."""
    told = subprocess.check_output(
        ["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"], env={**os.environ, stages.CHAIN: chain}
    )
    return psutil.Process(int(told))


def ended(process: psutil.Process) -> bool:
    """Whether it ended, even where nobody takes note of the ends of orphans."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_what_a_killed_chain_left_is_stopped_and_said(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from flows import chain

    gone = subprocess.Popen(["true"])
    gone.wait()
    left = orphan(str(gone.pid))
    other = subprocess.Popen(["sleep", "600"])
    params = Params()
    parent = tracking.start_run("rlm-nano", params)
    child = tracking.start_run("train", params, parent.run_id)
    chain.RUNNING.mkdir(exist_ok=True)
    chain.MARK.write_text(json.dumps({"run_id": parent.run_id, "process": str(gone.pid)}))
    try:
        killed = chain.clean_after_killed_run()
        chain.say_what_is_kept([], killed)
        assert ended(left)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
    assert "The last run was killed" in capfd.readouterr().out
    assert not chain.MARK.exists()
    for run in (parent, child):
        assert run.client.get_run(run.run_id).info.status == "KILLED"
    assert chain.clean_after_killed_run() is False


def test_a_killed_chain_of_our_own_number_left_nothing_that_we_started() -> None:
    number = str(os.getpid())
    left = orphan(number)
    own = subprocess.Popen(["sleep", "600"], env={**os.environ, stages.CHAIN: number})
    try:
        assert stages.stop_leftovers(number) == 1
        assert ended(left)
        assert own.poll() is None
    finally:
        own.kill()
        own.wait()


def test_a_stage_that_was_killed_is_closed_by_its_chain(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows import chain

    params = Params()
    parent = tracking.start_run("rlm-nano", params)
    monkeypatch.setenv(tracking.PARENT_RUN, parent.run_id)
    begun = []

    def killed(name: str) -> None:
        begun.append(tracking.start_run(name, params, parent.run_id))
        raise StageError(f"{name}: its command ended with exit code -9; see its output above")

    monkeypatch.setattr(stages, "reproduce", killed)
    with pytest.raises(StageError, match="exit code -9"):
        chain._stage.fn("train", params)
    (child,) = begun
    assert child.client.get_run(child.run_id).info.status == "KILLED"
    parent.end("FAILED")


def test_two_chains_never_write_the_same_folder(project: Path) -> None:
    from flows.lock import exclusive

    with exclusive(), pytest.raises(StageError, match=rf"process {os.getpid()}"), exclusive():
        pass
    with exclusive():
        pass


@pytest.mark.parametrize("command", ["resolve", "prepare"])
def test_nothing_by_hand_touches_a_folder_where_a_run_works(
    project: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    from typer.testing import CliRunner

    from flows import pipeline
    from flows.lock import exclusive

    ran: list[str] = []
    monkeypatch.setattr(pipeline, "run_stage", ran.append)
    before = config.write_resolved(Params()).read_text()
    with exclusive():
        told = CliRunner().invoke(pipeline.app, [command])
        assert (told.exit_code, ran) == (1, [])
        assert f"another run works in this folder (process {os.getpid()})" in told.output
        assert config.RESOLVED.read_text() == before
        # A stage that this very run started by DVC.
        monkeypatch.setenv(stages.CHAIN, "1")
        CliRunner().invoke(pipeline.app, [command])
        assert ran == (["prepare"] if command == "prepare" else [])
    monkeypatch.delenv(stages.CHAIN)
    assert CliRunner().invoke(pipeline.app, [command]).exit_code == 0


def test_a_cron_deployment_gets_scheduled_runs(prefect_url: str, project: Path) -> None:
    from flows.chain import rlm

    rlm.to_deployment(name="weekly", cron="0 3 * * 1").apply()  # type: ignore[union-attr]
    deadline = time.monotonic() + 60
    while not (scheduled := flow_runs(prefect_url, "Scheduled")):
        assert time.monotonic() < deadline, "the scheduler made no runs"
        time.sleep(0.5)
    assert all(run["auto_scheduled"] for run in scheduled)


@patient
@pytest.mark.slow
@pytest.mark.slow_sample
def test_the_whole_chain_trains_proves_and_registers(
    prefect_url: str, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from dvc.repo import Repo

    from flows.chain import play

    before = environments()
    assert play("quick", []) == 0
    told = capfd.readouterr().out
    for name in stages.STAGES:
        assert re.search(rf"[✓=] {name} \d+ s", told), name
    assert "Improvement: " in told
    assert "rlm version 1 (new; challenger)" in told
    assert re.search("champion .*(promoted: better than|kept: against) the untrained base", told)
    (parent, *_) = runs("rlm-quick")
    assert parent.info.status == "FINISHED"
    assert "result/f1_greedy" in parent.data.metrics
    for name in stages.STAGES:
        child = runs(name)[0]
        assert child.info.status == "FINISHED", name
        assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id, name
    for name in ("index.html", "evaluation.json", "train.parquet"):
        assert (project / "reports" / name).is_file()
    with Repo(".") as repo:
        assert repo.status() == {}
        assert repo.push() == 0

    # Again: nothing runs, nothing is registered, and MLflow says so.
    assert play("quick", []) == 0
    told = capfd.readouterr().out
    assert "Nothing changed since the last run" in told
    for name in stages.BY_DVC:
        assert f"= {name} " in told
        assert runs(name)[0].data.tags["cached"] == "true"
    assert "rlm version 1 (the weights are unchanged" in told
    assert environments() == before
