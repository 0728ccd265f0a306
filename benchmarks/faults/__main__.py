"""Inflict faults on real runs of the chain, and check that nothing is lost, spoilt or hidden.

    python -m benchmarks.faults --base models/base [--keep DIR] [--kills 1] [--only NAME ...]
                                [--table]

Each fault hits a run with tiny settings; then the same command runs again, undisturbed. The second
run must succeed, keep every stage reported as done, and promote only a model that won. It must
leave behind no process and no open MLflow run.

Rows are appended to DIR/faults.jsonl, and a restarted drill continues after the last one. `--kills`
is the number of SIGKILLs at random moments for each process of the system (`process_kills.py`).
The exit code is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from benchmarks.faults.process_kills import (
    TARGETS,
    KillRow,
    ask_for_a_run,
    deployed,
    end_of,
    kill_again_and_again,
    printed,
    worker,
)
from benchmarks.faults.project import (
    LONGEST_S,
    STORE,
    TINY,
    ChainProcess,
    Ended,
    Project,
    kill_group,
    mlflow_server,
    prefect_server,
)
from flows.services.processes import free_port

AT_ONCE = 10
"""Most SIGKILLs in the runs of one data set, before its last run is left undisturbed."""

Inflict = Callable[[Project, str], tuple[Ended, Ended]]
"""Inflicts a fault on a run of a data set; returns the ends of that run and of the next."""


def mlflow_gone(project: Project, data: str) -> tuple[Ended, Ended]:
    """Kill the MLflow server while a stage runs; restart it before the next run."""
    port = free_port()
    with project.using("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}"):
        with mlflow_server(project, port) as server:
            chain = validating(project, data)
            kill_group(server)
            first = chain.end()
        with mlflow_server(project, port):
            return first, project.start(data).end()


def prefect_gone(project: Project, data: str) -> tuple[Ended, Ended]:
    """Kill the Prefect server of the run while a stage runs."""
    with prefect_server(project) as server:
        chain = validating(project, data)
        kill_group(server)
        first = chain.end()
    return first, project.start(data).end()


def database_locked(project: Project, data: str) -> tuple[Ended, Ended]:
    """Lock mlflow.db for a minute."""
    chain = validating(project, data)
    with sqlite3.connect(project.folder / "mlflow.db", isolation_level=None) as store:
        store.execute("BEGIN EXCLUSIVE")
        with suppress(subprocess.TimeoutExpired):
            chain.process.wait(timeout=60)
        store.execute("ROLLBACK")
    return chain.end(), project.start(data).end()


def disk_full(project: Project, data: str) -> tuple[Ended, Ended]:
    """Mount models/ as a tmpfs of 8 MB, and fill it before training begins."""
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
    # The files of that disk are gone, so finished stages must be restored from DVC's cache.
    return first, project.start(data).end()


def remote_missing(project: Project, data: str) -> tuple[Ended, Ended]:
    """Put the DVC remote where nothing can be written."""
    local = project.folder / ".dvc/config.local"
    local.touch()
    with rewritten(local, b"['remote \"local\"']\n    url = /proc/no-such-remote\n"):
        first = project.start(data).end()
    return first, project.start(data).end()


def run_in_between(project: Project, data: str) -> tuple[Ended, Ended]:
    """Start a second run in the same folder; the first continues to its end."""
    chain = validating(project, data)
    second = project.start(data, name="second").end()
    return second, chain.end()


def schedule_in_between(project: Project, data: str) -> tuple[Ended, Ended]:
    """Start `rlm/retrain` while a run works here: it waits, then does its work."""
    chain = validating(project, data)
    wanted = ["prepare.synthetic.collections={train: 12, validation: 4, test: 11}"]
    said = project.last_line(
        "from flows.runtime import settle; settle(1)\n"
        "from flows.chain import prefect_server\nfrom flows.retrain import retrain\n"
        f"overrides = {[*TINY, *wanted]!r}\n"
        "with prefect_server():\n"
        "    state = retrain(overrides=overrides, date='2026-01-01', return_state=True)\n"
        "print(f'{state.name}: {state.message}')\n"
    )
    return Ended(0, said), chain.end()


def champion_missing(project: Project, data: str) -> tuple[Ended, Ended]:
    """Delete the alias `champion` in the registry."""
    project.command("-c", f"{STORE}store.delete_registered_model_alias('rlm', 'champion')")
    try:
        first = project.start(data).end()
    finally:
        project.command("-c", f"{STORE}store.set_registered_model_alias('rlm', 'champion', '1')")
    return first, project.start(data).end()


def champion_unreadable(project: Project, data: str) -> tuple[Ended, Ended]:
    """Change a byte of the champion's registered weights."""
    found = project.last_line(
        f"{STORE}champion = versions.champion('rlm')\n"
        "print(champion.version, versions.download(champion))"
    )
    version, folder = found.split(" ", 1)
    settings = [data, f"warmstart.version='{version}'"]
    (weights,) = (project.folder / folder).glob("*.safetensors")
    kept = weights.read_bytes()
    with rewritten(weights, kept[:-1] + bytes([kept[-1] ^ 1])):
        first = project.start(*settings).end()
    return first, project.start(*settings).end()


def worker_and_run_killed(project: Project, data: str) -> tuple[Ended, Ended]:
    """Kill a worker and its run at once, so that neither can report the end to Prefect."""
    with deployed(project), worker(project) as process:
        run = ask_for_a_run(project, [data])
        until = time.monotonic() + LONGEST_S
        while "validate  Check" not in printed(project) and time.monotonic() < until:
            time.sleep(0.1)
        process.kill()
        project.kill_all()
        first = Ended(1, f"{printed(project)}\n{end_of(project, run)}")
    return first, project.start(data).end()


def validating(project: Project, data: str) -> ChainProcess:
    """Start a run, and wait until its second stage has begun."""
    chain = project.start(data)
    chain.wait_for("validate  Check")
    return chain


@contextmanager
def rewritten(path: Path, content: bytes) -> Iterator[None]:
    """Replace a file's content within the block."""
    kept = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(kept)


FAULTS: dict[str, Inflict] = {
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


def outcome(project: Project, data: str, inflict: Inflict) -> KillRow:
    """A row of the table: the user's message, the result of the next run, the failed checks."""
    first, again = inflict(project, data)
    wrong = project.check(first.stages("✓="), again)
    return {"code": first.code, "said": first.line, "next": again.summary, "wrong": wrong}


def main() -> int:
    """Run the missing drills, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, default=Path("models/base"), help="a taught model")
    parser.add_argument(
        "--keep", type=Path, default=Path("runs/faults"), help="folder of the drill"
    )
    parser.add_argument("--kills", type=int, default=1, help="SIGKILLs of each process")
    parser.add_argument("--only", nargs="*", help="faults or processes to do, by name")
    parser.add_argument(
        "--table", action="store_true", help="only print the table of existing rows"
    )
    options = parser.parse_args()
    rows = options.keep.resolve() / "faults.jsonl"
    if not options.table:
        if not (options.base / "config.json").is_file():
            parser.error(
                f"{options.base} holds no model. Run the stage warmstart, or name one with --base."
            )
        project = Project.make(options.keep.resolve() / "project", options.base)
        wanted = (options.only or [*FAULTS, *TARGETS]).__contains__
        for name, inflict in FAULTS.items():
            if wanted(name) and name not in {row["fault"] for row in read_rows(rows)}:
                data = f"prepare.synthetic.seed={1001 + list(FAULTS).index(name)}"
                write(rows, name, project, partial(outcome, project, data, inflict))
        for target in filter(wanted, TARGETS):
            while (missing := options.kills - killed(rows, target)) > 0:
                number = 1 + sum(row["fault"] == f"SIGKILL {target}" for row in read_rows(rows))
                most = min(missing, AT_ONCE)
                kills = partial(kill_again_and_again, project, target, number, most)
                write(rows, f"SIGKILL {target}", project, kills)
    print_table(read_rows(rows))
    return int(any(row["wrong"] for row in read_rows(rows)))


def killed(rows: Path, target: str) -> int:
    """SIGKILLs that have hit the target so far."""
    return sum(row["kills"] for row in read_rows(rows) if row["fault"] == f"SIGKILL {target}")


def write(rows: Path, name: str, project: Project, inflict: Callable[[], KillRow]) -> None:
    """Inflict a fault, and append its row to the file."""
    started = time.monotonic()
    try:
        row = {"fault": name, **inflict()}
    finally:  # end leftover processes, which the check has already reported
        project.kill_all()
    row["minutes"] = round((time.monotonic() - started) / 60, 1)
    with rows.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"{name}: {'; '.join(row['wrong']) or 'held'} ({row['said']})", flush=True)


def read_rows(path: Path) -> list[KillRow]:
    """Rows in the file; empty if it does not exist."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def print_table(rows: list[KillRow]) -> None:
    """Print Markdown for docs/measurements.md; kills of one target share a line."""
    print("\n| fault | message to the user | the next run | held |\n|---|---|---|---|")
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
