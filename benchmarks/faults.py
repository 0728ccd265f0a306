"""Does a fault lose, spoil or hide anything? Faults on real runs of the chain, one after another.

    python -m benchmarks.faults --base models/base [--keep DIR] [--kills 1] [--only NAME ...]
                                [--table]

Each fault hits a run of tiny settings; then the same command runs again, undisturbed. It must end
well, keep every stage that was said to be done, promote nothing that did not win, leave no
process and no MLflow run behind. Rows go to DIR/faults.jsonl as they come, and a drill that is
started again goes on after the last one. `--kills` is the number of SIGKILLs at random moments for
each process of the system (`fault_kills.py`). Ends with 1 if anything did not hold.
"""

from __future__ import annotations

import argparse
import json
import os
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

from benchmarks.fault_kills import (
    TARGETS,
    Row,
    ask_for_a_run,
    deployed,
    end_of,
    kill_again_and_again,
    printed,
    worker,
)
from benchmarks.fault_project import (
    LONGEST_S,
    TINY,
    Ended,
    Project,
    kill_group,
    mlflow_server,
    prefect_server,
)
from flows.services import free_port

AT_ONCE = 10
"""SIGKILLs on the runs of one data set, before the last of them is left alone."""


def mlflow_gone(project: Project, data: str) -> Row:
    """Its server is killed while a stage runs; it is up again before the next run."""
    port = free_port()
    with project.using("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}"):
        with mlflow_server(project, port) as server:
            chain = project.start(data)
            chain.wait_for("validate  Check")
            kill_group(server)
            first = chain.end()
        with mlflow_server(project, port):
            again = project.start(data).end()
            return outcome(project, first, again)


def prefect_gone(project: Project, data: str) -> Row:
    """The server that the run reports to is killed while a stage runs."""
    with prefect_server(project) as server:
        chain = project.start(data)
        chain.wait_for("validate  Check")
        kill_group(server)
        first = chain.end()
    return outcome(project, first, project.start(data).end())


def database_locked(project: Project, data: str) -> Row:
    """Another process holds a lock on mlflow.db for a minute."""
    chain = project.start(data)
    chain.wait_for("validate  Check")
    with sqlite3.connect(project.folder / "mlflow.db", isolation_level=None) as store:
        store.execute("BEGIN EXCLUSIVE")
        with suppress(subprocess.TimeoutExpired):
            chain.process.wait(timeout=60)
        store.execute("ROLLBACK")
    first = chain.end()
    return outcome(project, first, project.start(data).end())


def disk_full(project: Project, data: str) -> Row:
    """models/ is a tmpfs of 8 MB that something else has filled when training begins."""
    models = project.folder / "models"
    shutil.rmtree(models, ignore_errors=True)
    models.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", models], check=True)
    try:
        chain = project.start(data)
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
    return outcome(project, first, project.start(data).end())


def remote_missing(project: Project, data: str) -> Row:
    """The DVC remote lies where nothing can be written."""
    local = project.folder / ".dvc/config.local"
    kept = local.read_text()
    local.write_text(kept + "['remote \"local\"']\n    url = /proc/no-such-remote\n")
    try:
        first = project.start(data).end()
    finally:
        local.write_text(kept)
    return outcome(project, first, project.start(data).end())


def run_in_between(project: Project, data: str) -> Row:
    """A second run is started in the same folder; the first goes on to its end."""
    chain = project.start(data)
    chain.wait_for("validate  Check")
    second = project.start(data, name="second").end()
    again = chain.end()
    return outcome(project, second, again)


def schedule_in_between(project: Project, data: str) -> Row:
    """`rlm/retrain` begins while a run works here: it waits, then does its work."""
    chain = project.start(data)
    chain.wait_for("validate  Check")
    wanted = ["prepare.synthetic.groups={train: 12, validation: 4, test: 11}"]
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


def champion_missing(project: Project, data: str) -> Row:
    """The alias is gone from the registry."""
    alias = "from tasks import tracking; s = tracking.client(tracking.tracking_uri()); "
    project.python(f"{alias}s.delete_registered_model_alias('rlm', 'champion')")
    try:
        first = project.start(data).end()
    finally:
        project.python(f"{alias}s.set_registered_model_alias('rlm', 'champion', '1')")
    return outcome(project, first, project.start(data).end())


def champion_unreadable(project: Project, data: str) -> Row:
    """A byte of the champion's registered weights is another."""
    told = project.python(
        "from tasks import register; champion = register.champion('rlm')\n"
        "print(champion.version, register.download(champion))"
    )
    version, folder = told.strip().splitlines()[-1].split(" ", 1)
    asked = [data, f"warmstart.version='{version}'"]
    (weights,) = (project.folder / folder).glob("*.safetensors")
    kept = weights.read_bytes()
    weights.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    try:
        first = project.start(*asked).end()
    finally:
        weights.write_bytes(kept)
    return outcome(project, first, project.start(*asked).end())


def worker_and_run_killed(project: Project, data: str) -> Row:
    """A worker and its run are killed at once: nobody is left to tell Prefect how it ended."""
    with deployed(project), worker(project) as process:
        run = ask_for_a_run(project, [data])
        until = time.monotonic() + LONGEST_S
        while "validate  Check" not in printed(project) and time.monotonic() < until:
            time.sleep(0.1)
        for pid in [process.pid, *project.processes(lambda line: True)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        first = Ended(1, f"{printed(project)}\n{end_of(project, run)}")
    return outcome(project, first, project.start(data).end())


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
    "worker and run killed at once": worker_and_run_killed,
}


def outcome(project: Project, first: Ended, again: Ended) -> Row:
    """A row of the table: what the user saw, what the next run did, what did not hold."""
    wrong = project.check(first.stages("✓="), again)
    return {"code": first.code, "said": first.line, "next": again.summary, "wrong": wrong}


def main() -> int:
    """Run what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, default=Path("models/base"), help="a taught model")
    parser.add_argument(
        "--keep", type=Path, default=Path("runs/faults"), help="folder of the drill"
    )
    parser.add_argument("--kills", type=int, default=1, help="of each process")
    parser.add_argument("--only", nargs="*", help="faults or processes to do, by name")
    parser.add_argument("--table", action="store_true", help="print what is there and end")
    options = parser.parse_args()
    rows = options.keep.resolve() / "faults.jsonl"
    if not options.table:
        if not (options.base / "config.json").is_file():
            parser.error(f"{options.base} holds no model: run the stage warmstart, or name one")
        project = Project.make(options.keep.resolve() / "project", options.base)
        wanted = (options.only or [*FAULTS, *TARGETS]).__contains__
        for name, inflict in FAULTS.items():
            if wanted(name) and name not in {row["fault"] for row in read(rows)}:
                data = f"prepare.synthetic.seed={1001 + list(FAULTS).index(name)}"
                write(rows, name, project, partial(inflict, project, data))
        for target in filter(wanted, TARGETS):
            while (missing := options.kills - killed(rows, target)) > 0:
                number = 1 + sum(row["fault"] == f"SIGKILL {target}" for row in read(rows))
                most = min(missing, AT_ONCE)
                inflict = partial(kill_again_and_again, project, target, number, most)
                write(rows, f"SIGKILL {target}", project, inflict)
    print_table(read(rows))
    return int(any(row["wrong"] for row in read(rows)))


def killed(rows: Path, target: str) -> int:
    """SIGKILLs that have hit it so far."""
    return sum(row["kills"] for row in read(rows) if row["fault"] == f"SIGKILL {target}")


def write(rows: Path, name: str, project: Project, inflict: Callable[[], Row]) -> None:
    """Inflict, and add the row to the file."""
    started = time.monotonic()
    with alone(project):
        row = {"fault": name, **inflict()}
    row["minutes"] = round((time.monotonic() - started) / 60, 1)
    with rows.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"{name}: {'; '.join(row['wrong']) or 'held'} ({row['said']})", flush=True)


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
    """Markdown for docs/reliability.md; kills of one target share a line."""
    print("\n| fault | what the user sees | the next run | held |\n|---|---|---|---|")
    for name in dict.fromkeys(row["fault"] for row in rows):
        same = [row for row in rows if row["fault"] == name]
        wrong = [text for row in same for text in row["wrong"]]
        times = f", {sum(row['kills'] for row in same)} times" if "kills" in same[0] else ""
        at = f" ({'; '.join(row['at'] for row in same)})" if times else ""
        said = same[-1]["said"].replace("|", "\\|")[:300]
        held = "yes" if not wrong else "**no**: " + "; ".join(wrong)
        print(f"| {name}{times}{at} | {said} | {same[-1]['next']} | {held} |")


if __name__ == "__main__":
    sys.exit(main())
