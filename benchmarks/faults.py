"""Does a fault lose, spoil or hide anything? Faults on real runs of the chain, one after another.

    python -m benchmarks.faults --base models/base [--keep DIR] [--kills 1] [--only NAME ...]
                                [--table]

Each fault hits a run of tiny settings; then the same command runs again, undisturbed. It must end
well, keep every stage that was said to be done, promote nothing that did not win, leave no
process and no MLflow run behind. Rows go to DIR/faults.jsonl as they come, and a drill that is
started again goes on after the last one. `--kills` is the number of SIGKILLs at random moments for
each process of the system. Ends with 1 if anything did not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.fault_project import TINY, Ended, Project, kill_group
from flows.services import free_port

Row = dict[str, Any]
KILLED = {
    "chain": lambda line: "flows.pipeline run" in line,
    "stage": lambda line: "flows.pipeline " in line and "flows.pipeline run" not in line,
    "environment server": lambda line: "env.server.app" in line,
    "sandbox zygote": lambda line: "inside.zygote" in line,
    "Prefect server": lambda line: "prefect.server" in line or "prefect server start" in line,
}
"""What is killed, by a piece of its command line."""
UNTIL_S = 240.0
"""Seconds from the start within which a kill falls; the run's own length when it is known."""


def mlflow_server(project: Project, port: int) -> Any:
    """An MLflow server over the project's own store."""
    command = ["mlflow", "server", "--workers", "1", "--host", "127.0.0.1", "--port", str(port)]
    store = ["--backend-store-uri", "sqlite:///mlflow.db", "--artifacts-destination", "mlartifacts"]
    return project.server(*command, *store, health=f"http://127.0.0.1:{port}/health")


def mlflow_gone(project: Project, seed: int, at_s: float | None = None) -> Row:
    """Its server is killed while a stage runs; it is up again before the next run."""
    port = free_port()
    project.environment["MLFLOW_TRACKING_URI"] = f"http://127.0.0.1:{port}"
    try:
        with mlflow_server(project, port) as server:
            chain = project.start(f"prepare.synthetic.seed={seed}")
            if at_s is None:
                chain.wait_for("validate  Check")
            with suppress(subprocess.TimeoutExpired):
                chain.process.wait(timeout=at_s or 0.0)
            kill_group(server)
            first = chain.end()
        with mlflow_server(project, port):
            again = project.start(f"prepare.synthetic.seed={seed}").end()
            return outcome(project, first, again)
    finally:
        del project.environment["MLFLOW_TRACKING_URI"]


def prefect_gone(project: Project, seed: int) -> Row:
    """The server that the run reports to is killed while a stage runs."""
    port = free_port()
    command = ["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    health = f"http://127.0.0.1:{port}/api/health"
    with project.server(*command, health=health) as server:
        project.environment["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
        try:
            chain = project.start(f"prepare.synthetic.seed={seed}")
            chain.wait_for("validate  Check")
            kill_group(server)
            first = chain.end()
        finally:
            del project.environment["PREFECT_API_URL"]
    return outcome(project, first, project.start(f"prepare.synthetic.seed={seed}").end())


def database_locked(project: Project, seed: int) -> Row:
    """Another process holds a lock on mlflow.db for a minute."""
    chain = project.start(f"prepare.synthetic.seed={seed}")
    chain.wait_for("validate  Check")
    with sqlite3.connect(project.folder / "mlflow.db", isolation_level=None) as store:
        store.execute("BEGIN EXCLUSIVE")
        with suppress(subprocess.TimeoutExpired):
            chain.process.wait(timeout=60)
        store.execute("ROLLBACK")
    first = chain.end()
    return outcome(project, first, project.start(f"prepare.synthetic.seed={seed}").end())


def disk_full(project: Project, seed: int) -> Row:
    """models/ is a tmpfs of 8 MB that something else has filled when training begins."""
    models = project.folder / "models"
    shutil.rmtree(models, ignore_errors=True)
    models.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", models], check=True)
    try:
        chain = project.start(f"prepare.synthetic.seed={seed}")
        chain.wait_for("gate  Refuse")
        with suppress(OSError), (models / "filler").open("wb") as filler:
            while True:
                filler.write(b"\0" * 4096)
                filler.flush()
        first = chain.end()
    finally:
        subprocess.run(["umount", "--lazy", models], check=True)
    shutil.rmtree(models, ignore_errors=True)
    # The files of that disk are gone with it, so what was done has to come from DVC's cache.
    return outcome(project, first, project.start(f"prepare.synthetic.seed={seed}").end())


def remote_missing(project: Project, seed: int) -> Row:
    """The DVC remote lies where nothing can be written."""
    local = project.folder / ".dvc/config.local"
    kept = local.read_text()
    local.write_text(kept + "['remote \"local\"']\n    url = /proc/no-such-remote\n")
    try:
        first = project.start(f"prepare.synthetic.seed={seed}").end()
    finally:
        local.write_text(kept)
    return outcome(project, first, project.start(f"prepare.synthetic.seed={seed}").end())


def run_in_between(project: Project, seed: int) -> Row:
    """A second run is started in the same folder; the first goes on to its end."""
    chain = project.start(f"prepare.synthetic.seed={seed}")
    chain.wait_for("validate  Check")
    second = project.start(f"prepare.synthetic.seed={seed}", name="second").end()
    again = chain.end()
    return outcome(project, second, again)


def schedule_in_between(project: Project, seed: int) -> Row:
    """`rlm/retrain` begins while a run works here: it waits, then does its work."""
    chain = project.start(f"prepare.synthetic.seed={seed}")
    chain.wait_for("validate  Check")
    wanted = [f"prepare.synthetic.groups={{train: 12, validation: 4, test: {10 + seed % 5}}}"]
    code = (
        "from flows.surroundings import settle; settle(1)\n"
        "from flows.chain import prefect_server\nfrom flows.retrain import retrain\n"
        f"overrides = {[*TINY, *wanted]!r}\n"
        "with prefect_server():\n"
        "    state = retrain(overrides=overrides, date='2026-01-01', return_state=True)\n"
        "print(f'{state.name}: {state.message}')\n"
    )
    told = project.python(code).strip().splitlines()[-1]
    first = chain.end()
    return outcome(project, Ended(0, told), first)


def champion_missing(project: Project, seed: int) -> Row:
    """The alias is gone from the registry."""
    alias = "from tasks import tracking; s = tracking.client(tracking.tracking_uri()); "
    project.python(f"{alias}s.delete_registered_model_alias('rlm', 'champion')")
    try:
        first = project.start(f"prepare.synthetic.seed={seed}").end()
    finally:
        project.python(f"{alias}s.set_registered_model_alias('rlm', 'champion', '1')")
    return outcome(project, first, project.start(f"prepare.synthetic.seed={seed}").end())


def champion_unreadable(project: Project, seed: int) -> Row:
    """A byte of the champion's registered weights is another."""
    weights = next(
        path
        for path in sorted((project.folder / "mlartifacts").rglob("*.safetensors"))
        if not path.is_symlink()
    )
    kept = weights.read_bytes()
    weights.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    try:
        first = project.start(f"prepare.synthetic.seed={seed}", "warmstart.version='1'").end()
    finally:
        weights.write_bytes(kept)
    again = project.start(f"prepare.synthetic.seed={seed}", "warmstart.version='1'").end()
    return outcome(project, first, again)


FAULTS: dict[str, Callable[..., Row]] = {
    "MLflow server gone": mlflow_gone,
    "Prefect server gone": prefect_gone,
    "MLflow database locked": database_locked,
    "disk full": disk_full,
    "DVC remote missing": remote_missing,
    "second run in the folder": run_in_between,
    "schedule fires while a run is on": schedule_in_between,
    "champion missing": champion_missing,
    "champion unreadable": champion_unreadable,
}


def kill_mlflow(project: Project, seed: int, rng: random.Random) -> Row:
    """SIGKILL the MLflow server at a random moment; it is up again before the next run."""
    return mlflow_gone(project, seed, at_s=rng.uniform(0, UNTIL_S))


def kill_worker(project: Project, seed: int, rng: random.Random) -> Row:
    """SIGKILL the Prefect worker at a random moment of a run of `rlm/full` that it started."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    serve = ["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    project.environment["PREFECT_API_URL"] = url
    health = f"{url}/health"
    try:
        with project.server(*serve, health=health):
            for words in (
                ["work-pool", "create", "local", "--type", "process", "--overwrite"],
                ["--no-prompt", "deploy", "--all"],
            ):
                project.command("prefect", *words)
            with project.server(
                "prefect", "worker", "start", "--pool", "local", health=health
            ) as w:
                told = project.python(
                    ASK.format(overrides=[*TINY, f"prepare.synthetic.seed={seed}"])
                )
                time.sleep(rng.uniform(15, UNTIL_S))
                os.kill(w.pid, signal.SIGKILL)
                said = project.python(AWAIT.format(run=told.strip().splitlines()[-1]))
    finally:
        del project.environment["PREFECT_API_URL"]
    first = Ended(0, said.strip().splitlines()[-1])
    return outcome(project, first, project.start(f"prepare.synthetic.seed={seed}").end())


ASK = """
from prefect.deployments import run_deployment
run = run_deployment("rlm/full", parameters={{"overrides": {overrides!r}}}, timeout=0)
print(run.id)
"""
AWAIT = """
import time
from uuid import UUID
from prefect import get_client
with get_client(sync_client=True) as client:
    for _ in range(1800):
        state = client.read_flow_run(UUID("{run}")).state
        if state.is_final():
            break
        time.sleep(1)
    print(f"the flow run ended {{state.name}}: {{state.message}}")
"""


def kill(project: Project, seed: int, rng: random.Random, target: str) -> Row:
    """SIGKILL one process of the system at a random moment, or as soon as it is there."""
    settings = [f"prepare.synthetic.seed={seed}", "train.learning_rate=0.002"]  # and promote plays
    chain = project.start(*settings)
    moment = time.monotonic() + rng.uniform(0, UNTIL_S)
    while time.monotonic() < moment and chain.process.poll() is None:
        time.sleep(0.05)
    victims: list[int] = []
    while not victims and chain.process.poll() is None:
        victims = project.processes(KILLED[target])
        time.sleep(0.02)
    stage = (
        ["before the first stage"]
        + [line.split("  ")[0] for line in chain.told.splitlines() if "/13 " in line[:6]]
    )[-1]
    for victim in victims[:1]:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    first = chain.end()
    again = project.start(*settings).end()
    return outcome(project, first, again) | {"at": stage if victims else "it was over"}


def outcome(project: Project, first: Ended, again: Ended) -> Row:
    """A row of the table: what the user saw, what the next run did, what did not hold."""
    wrong = project.check(first.stages("✓="), again)
    kept, made = again.stages("="), again.stages("✓")
    return {
        "code": first.code,
        "said": first.line,
        "next": f"{len(kept)} stages kept, {', '.join(made)} made" if made else "nothing to do",
        "wrong": wrong,
    }


def main() -> int:
    """Run what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, default=Path("models/base"), help="a taught model")
    parser.add_argument(
        "--keep", type=Path, default=Path("runs/faults"), help="folder of the drill"
    )
    parser.add_argument("--kills", type=int, default=1, help="of each process")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--only", nargs="*", help="faults or processes to do, by name")
    parser.add_argument("--table", action="store_true", help="print what is there and end")
    options = parser.parse_args()
    rows = options.keep.resolve() / "faults.jsonl"
    if not options.table:
        if not (options.base / "config.json").is_file():
            parser.error(f"{options.base} holds no model: run the stage warmstart, or name one")
        project = Project.make(options.keep.resolve() / "project", options.base)
        for name, does in wanted(options.kills, options.seed, options.only):
            if name in {row["fault"] for row in read(rows)}:
                continue
            started = time.monotonic()
            with alone(project):
                row = {"fault": name, **does(project)}
            row["minutes"] = round((time.monotonic() - started) / 60, 1)
            with rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            print(f"{name}: {'; '.join(row['wrong']) or 'held'} ({row['said']})", flush=True)
    print_table(read(rows))
    return int(any(row["wrong"] for row in read(rows)))


def wanted(
    kills: int, seed: int, only: list[str] | None
) -> Iterator[tuple[str, Callable[[Project], Row]]]:
    """Every fault by name, with what inflicts it; each works on data of its own."""
    killers: dict[str, Callable[..., Row]] = {
        **{target: partial(kill, target=target) for target in KILLED},
        "MLflow server": kill_mlflow,
        "Prefect worker": kill_worker,
    }
    for number, (name, inflict) in enumerate(FAULTS.items(), 1001):
        if only is None or name in only:
            yield name, partial(inflict, seed=number)
    for place, (target, inflict_kill) in enumerate(killers.items(), 2):
        for number in range(1, kills + 1):
            rng = random.Random(f"{seed}/{target}/{number}")
            if only is None or target in only:
                name = f"SIGKILL {target} {number}"
                yield name, partial(inflict_kill, seed=1000 * place + number, rng=rng)


@contextmanager
def alone(project: Project) -> Iterator[None]:
    """Whatever a row leaves behind is ended after it, and said by its check before that."""
    try:
        yield
    finally:
        for pid in project.processes(lambda line: True):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def read(path: Path) -> list[Row]:
    """The rows so far."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def print_table(rows: list[Row]) -> None:
    """Markdown for docs/reliability.md."""
    print("\n| fault | what the user sees | the next run | held |\n|---|---|---|---|")
    for row in rows:
        at = f" (at {row['at']})" if "at" in row else ""
        said = row["said"].replace("|", "\\|")[:300]
        held = "yes" if not row["wrong"] else "**no**: " + "; ".join(row["wrong"])
        print(f"| {row['fault']}{at} | {said} | {row['next']} | {held} |")


if __name__ == "__main__":
    sys.exit(main())
