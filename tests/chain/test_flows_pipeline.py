"""The chain as a whole: what runs when, how it ends, and what it leaves."""

import ast
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import chdir
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from helpers import documents
from helpers.chain_runs import copy_project, environments, flow_runs, in_folder, runs
from helpers.sandbox_events import wait_for
from helpers.services import Services, services_up

from flows import retrain, stages
from flows.chain import MARK
from tasks import config
from tasks.config.params import Params
from tasks.errors import ConfigError
from tasks.io import write_json
from tasks.registry import champions, versions
from tasks.tracking import runs as tracking

ROOT = Path(__file__).parents[2]
CODE = (
    *("agent", "env", "flows", "mlflow", "profiles", "rewards", "tasks"),
    *(".dvc/config", ".dvc/.gitignore", ".dvcignore", ".gitignore"),
)
FILES = ("dvc.yaml", "params.yaml", "constraints.txt", "prefect.toml", "prefect.yaml")
TINY = [
    "prepare.synthetic.collections={train: 12, validation: 4, test: 8}",
    "audit.problems=6",
    "train.steps=1",
    "train.processes=1",
    "warmstart.nano.steps=700",
    "evaluate.latency_episodes=1",
    "promote.problems=200",
]
"""Settings over profile `quick`: every stage does all that it does, in two minutes together."""
# A small model, and one plan for all roots: it learns in seconds. One answer in eight is gold.
SMALL = {
    "plans": "PLANS, SIZES, MOST, KEPT = {'readers': 1}, {8: 1}, {8: 1}, {'first': 1}\n",
    "sizes": """
@dataclass(frozen=True)
class NanoSettings(NanoSettings):
    model: NanoModelSettings = NanoModelSettings(hidden=64, layers=2, heads=2, mlp=128)
    batch_tokens: int = 512
    learning_rate: float = 0.004
    drill_steps: int = 40
    drill_every: int = 50
    probe_pairs: int = 20
    slips: float = 0
    noise: float = 0
""",
}
"""What follows the constants of nano's warm start in the copy of the project."""
DVC = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


def test_a_wrong_setting_ends_the_command_before_anything_starts(tmp_path: Path) -> None:
    shutil.copy(ROOT / "params.yaml", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "flows.pipeline", "run", "--set", "train.steps=0"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == ConfigError.exit_code
    assert done.stderr.strip().count("\n") == 0
    assert "train.steps" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["params.yaml"]


# --- DVC's description against the code ---


def test_dvc_removes_no_problems_before_it_makes_new_ones() -> None:
    """Otherwise a wrong setting or a missing file would cost the data of before."""
    outs = [out for outs in DVC["prepare"]["outs"] for out in outs.items()]
    kept = {name: options["persist"] for name, options in outs}
    assert kept == {"data/problems": True, "data/report.json": True}


def test_dvc_watches_all_settings_that_the_module_of_a_stage_reads() -> None:
    # How fast and where, not what.
    # Ranks get all settings of their stage.
    free = {"threads", "deploy", "model_dump", "of_episodes", "env.max_sessions"}
    # One stage runs after any edit, so that it can refuse.
    assert {"params.yaml", "profiles"} <= {*DVC["plots"]["deps"]}
    for name, stage in DVC.items():
        watched = {key for part in stage["params"] for key in part["params.resolved.yaml"]}
        for section in ("env", "generation"):
            decides = {f"{section}.{key}" for key in Params().of_episodes()[section]}
            assert name == "warmstart" or not decides & watched or decides <= watched
        for node in ast.walk(ast.parse((ROOT / f"tasks/{name}.py").read_text())):
            path = re.sub(r"^generation\..*", "generation", dotted(node) or "")
            if not path or path in free or path.split(".")[0] in free:
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


# --- the real chain on Prefect's own server ---


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A copy of the project's code in which a chain is played."""
    copy_project(tmp_path, [*CODE, *FILES])
    for name, constants in SMALL.items():
        module = tmp_path / f"agent/nano/{name}.py"
        module.write_text(module.read_text() + constants)
    with in_folder(tmp_path):
        yield tmp_path


@pytest.mark.timeout(1500)
@pytest.mark.xdist_group("tiny chain")  # the longest test, with a Prefect server of its own
def test_the_chain_trains_proves_and_registers_and_then_does_nothing(
    prefect_url, project, warm, capfd, pytestconfig
):
    from dvc.repo import Repo

    from flows.chain import play

    before = environments()
    # The stages start with their packages imported.
    stages_of_dvc = (project / "dvc.yaml").read_text().replace("cmd: python ", f"cmd: {warm} ")
    (project / "dvc.yaml").write_text(stages_of_dvc)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    # A worker plays it, as in production.
    full = ["prefect", "deployment", "run", "rlm/full", "--watch", "-p", "profile=quick", "-p"]
    with services_up(project, pytestconfig, PYTHONPATH=str(project)) as (shell, up):
        assert "Did you mean train.steps?" in shell(*full, 'overrides=["train.stepps=3"]', code=1)
        watched = " ".join(shell(*full, f"overrides={json.dumps(TINY)}").split())
        told = Path(".run/flow.log").read_text(encoding="utf-8")
        fires_and_finds_nothing_new(shell, re.findall(r"password: (\S+)\)", up)[0])
    assert "rlm version 1 (new; challenger)" in watched
    assert re.search("champion: (promoted: better than|kept: against) the base before", watched)
    assert "its figures mean nothing" in watched
    assert re.search("zeroshot: .* so demonstrations follow .*bare model: ", watched)
    status = ["git", "status", "--porcelain"]
    changed = subprocess.run(status, capture_output=True, text=True, check=True).stdout
    assert changed == "?? dvc.lock\n?? params.resolved.yaml\n"
    for name in stages.STAGES:
        assert re.search(rf"✓ {name} \d+ s|= {name} kept", told), name
    assert "Improvement: " in told
    (parent, *_) = runs("rlm-quick")
    assert parent.info.status == "FINISHED"
    assert "result/f1" in parent.data.metrics
    assert "/#/models/rlm/versions/1 |" in parent.data.tags["mlflow.note.content"]
    store = tracking.client(tracking.tracking_uri())
    for run in (parent, runs("train")[0]):
        curve = store.get_metric_history(run.info.run_id, "reward/overall")
        assert [point.step for point in curve] == list(range(1, len(curve) + 1)) != []
    kept = store.list_artifacts(parent.info.run_id)
    assert {"dvc.lock", "params.resolved.yaml"} <= {file.path for file in kept}
    for name in stages.STAGES:
        child = runs(name)[0]
        assert child.info.status == "FINISHED", name
        assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id, name
    for name in ("index.html", "evaluation.json", "train.parquet"):
        assert (project / "reports" / name).is_file()
    with Repo(".") as repo:
        assert repo.status() == {}
        assert repo.push() == 0
    outside, clone = (project.with_name(f"{project.name}-{name}") for name in ("remote", "clone"))
    subprocess.run(["dvc", "remote", "add", "--default", "shared", str(outside)], check=True)
    with Repo(".") as repo:
        assert repo.push() > 0

    # Committed, it is a version, which somebody else gets with all data and models.
    for words in (["add", "."], ["commit", "-qm", "results"], ["clone", "-q", ".", str(clone)]):
        subprocess.run([*git, *words], check=True)
    with chdir(clone), Repo(".") as repo:
        repo.pull()
        assert repo.status() == {}
        gained = repo.metrics.diff("HEAD~1")["diff"]["reports/metrics.json"]["after.result/f1"]
        assert gained["new"] == parent.data.metrics["result/f1"]
        assert repo.params.diff("HEAD~1")["diff"]["params.resolved.yaml"]["train.steps"]["new"] == 1
    weights = list(Path("models").rglob("*.safetensors"))
    assert any("checkpoint-1" in file.parts for file in weights)
    for file in weights:
        assert (clone / file).read_bytes() == file.read_bytes()
    shutil.rmtree(clone)

    # Again: nothing runs, nothing is registered, and MLflow says so.
    assert play("quick", TINY) == 0
    told = capfd.readouterr().out
    assert "Nothing changed since the last run" in told
    for name in stages.BY_DVC:
        assert f"= {name} " in told
        assert runs(name)[0].data.tags["cached"] == "true"
    assert "rlm version 1 (the weights are unchanged" in told
    assert environments() == before

    # The code and the request of the documents.
    if versions.champion("rlm") is None:
        champions.rollback("rlm", "1")
    names: dict[str, Any] = {}
    exec(documents.fences("docs/registry.md", "python")[0], names)
    assert "'void': None" in capfd.readouterr().out
    (answer,) = names["model"].predict(documents.request()["inputs"])
    assert answer["void"] is None


def fires_and_finds_nothing_new(shell: Services, password: str) -> None:
    """Switch the schedule of `rlm/retrain` on, for data that it has had, and wait for its run."""
    settings = retrain.settings_of(config.resolve("quick", TINY))
    last = {"data": "synthetic data of 20261123", "settings": settings}
    write_json(retrain.LAST, {**last, "start": None, "completed": True})
    committed = Path("prefect.yaml").read_text()
    described = yaml.safe_load(committed)
    scheduled = described["deployments"][1]
    scheduled["parameters"] |= {"profile": "quick", "overrides": TINY, "date": "2026-11-23"}
    scheduled["schedules"][0] |= {"cron": "* * * * *", "active": True}
    Path("prefect.yaml").write_text(yaml.safe_dump(described))
    since = datetime.now(UTC)
    api = shell.api.replace("//", f"//{password}@")
    rlm = httpx.post(f"{api}/flows/", json={"name": "rlm"}).json()["id"]
    running = {"flow_id": rlm, "state": {"type": "RUNNING"}}
    killed = httpx.post(f"{api}/flow_runs/", json=running).json()["id"]
    write_json(MARK, {"run_id": "gone", "process": "999999999", "flow_run": killed})
    shell("python", "-m", "flows.services", "up")
    assert httpx.get(f"{api}/flow_runs/{killed}").json()["state"]["type"] == "CRASHED"

    def fired() -> bool:
        time.sleep(1)
        ended = flow_runs(api, "Completed", since)
        told = "Nothing new: synthetic data of 20261123 and settings as at the last retraining"
        return any(run["auto_scheduled"] and run["state"]["message"] == told for run in ended)

    assert wait_for(fired, seconds=150)
    Path("prefect.yaml").write_text(committed)


def test_a_python_without_the_packages_names_the_command_that_brings_them() -> None:
    command = [sys.executable, "-S", "-m", "flows.pipeline", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "source .venv/bin/activate" in done.stderr
