"""Inflict the faults of docs/reliability.md on runs whose stores are PostgreSQL and S3.

    python -m benchmarks.cluster.faults --base models/base [--keep DIR] [--only NAME ...]

A host plays tiny settings with `rlm run`; its champion is `--base`. Each fault hits a run, then the
same command runs again, undisturbed. The second run must succeed, repeat no stage that was done,
promote only a model that won, and leave no open MLflow run. Exit code 1: a check failed.
`benchmarks.faults` has the same faults on SQLite and folders.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.cluster.hosts import ClusterHost, servers, wait_for
from benchmarks.cluster.stores import Postgres, StoreMissingError, postgres, s3_server
from benchmarks.cluster.traffic import CountedStore, counted
from benchmarks.faults.project import (
    BY_DVC,
    REGISTER,
    STORE,
    TINY,
    ChainProcess,
    Ended,
    launch,
    options_of,
)
from flows.services.processes import answers
from tasks.errors import ConfigError

GONE_S = 60.0
_STATE = f"""{STORE}
import json
found = store.search_model_versions("name = 'rlm'")
for version in found:
    versions.download(version)  # checks the hash of its weights
won = [v.version for v in found if v.tags.get("promotion.verdict") == "promoted"]
running = store.search_runs([runs.experiment_id("rlm")], "attributes.status = 'RUNNING'")
print(json.dumps([str(versions.by_alias("rlm", "champion").version), won, len(running)]))
"""


class FaultBench(NamedTuple):
    """The host under test, and what can fail beneath it."""

    host: ClusterHost
    server: Path
    """Folder of Prefect's and MLflow's servers."""
    database: Postgres
    store: CountedStore

    def start(self, data: str) -> ChainProcess:
        """Start the chain; its output goes to a log in the folder."""
        log = self.host.folder / "run.log"
        command = [sys.executable, "-u", "-m", "flows.pipeline", "run", *options_of([*TINY, data])]
        return ChainProcess(launch(command, self.host.folder, self.host.environment, log), log)

    def validating(self, data: str) -> ChainProcess:
        """Start a run, and wait until its second stage has begun."""
        chain = self.start(data)
        chain.wait_for("validate  Check")
        return chain


def database_gone(bench: FaultBench, data: str) -> Ended:
    """Stop PostgreSQL for a minute while a stage runs."""
    chain = bench.validating(data)
    bench.database.stop()
    time.sleep(GONE_S)
    bench.database.start()
    return chain.end()


def store_gone(bench: FaultBench, data: str) -> Ended:
    """Refuse the host's connections to S3 from the second stage to the end of the run."""
    chain = bench.validating(data)
    bench.store.set_server("host", "maint")
    try:
        return chain.end()
    finally:
        bench.store.set_server("host", "ready")


def mlflow_gone(bench: FaultBench, data: str) -> Ended:
    """Kill the MLflow server while a stage runs; restart it before the next run."""
    return _server_gone(bench, data, "mlflow-server")


def prefect_gone(bench: FaultBench, data: str) -> Ended:
    """Kill the Prefect server while a stage runs; restart it before the next run."""
    return _server_gone(bench, data, "prefect-server")


def run_killed(bench: FaultBench, data: str) -> Ended:
    """Kill all processes of the run."""
    chain = bench.validating(data)
    bench.host.send(signal.SIGKILL)
    return chain.end()


def _server_gone(bench: FaultBench, data: str, name: str) -> Ended:
    file = bench.server / f".run/{name}.pid"
    server = psutil.Process(int(file.read_text()))
    words, variables = server.cmdline(), server.environ()
    port = words[words.index("--port") + 1]
    chain = bench.validating(data)
    os.killpg(server.pid, signal.SIGKILL)
    first = chain.end()
    with (bench.server / f".run/{name}.log").open("ab") as log:
        process = subprocess.Popen(
            words,
            cwd=bench.server,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    file.write_text(str(process.pid))
    health = f"http://127.0.0.1:{port}{'/api' if name.startswith('prefect') else ''}/health"
    wait_for(lambda: answers(health), 180, f"{name} answers")
    return first


FAULTS: dict[str, Callable[[FaultBench, str], Ended]] = {
    "PostgreSQL gone for a minute": database_gone,
    "S3 gone until the run ends": store_gone,
    "MLflow server gone": mlflow_gone,
    "Prefect server gone": prefect_gone,
    "run killed": run_killed,
}


def check(bench: FaultBench, first: Ended, again: Ended) -> list[str]:
    """Failed checks after a fault and the run that followed; empty if all hold."""
    wrong = []
    if again.code:
        wrong.append(f"the next run ended with {again.code}: {again.line}")
    done = first.stages("✓=")
    if repeated := [n for n in again.stages("✓") if n in done and n in BY_DVC]:
        wrong.append(f"done before the fault and made again: {', '.join(repeated)}")
    champion, won, running = bench.host.ask(_STATE)
    if champion not in ("1", *won):
        wrong.append(f"version {champion} is champion and was never promoted")
    if running:
        wrong.append(f"{running} runs of MLflow are still RUNNING")
    return wrong


def drill(folder: Path, base: Path, names: list[str]) -> int:
    """Inflict the faults and print a row for each; returns the exit code."""
    failed = 0
    with ExitStack() as stack:
        database = stack.enter_context(postgres(folder / "pg", ["prefect", "mlflow"]))
        s3 = stack.enter_context(s3_server(folder))
        store = stack.enter_context(counted(folder / "s3", s3.url, ["host"]))
        shared = stack.enter_context(servers(folder / "server", database, s3))
        variables = {**shared, "AWS_ENDPOINT_URL": store.urls["host"], "OMP_NUM_THREADS": "1"}
        host = ClusterHost.make(folder / "host", variables)
        stack.callback(host.send, signal.SIGKILL)
        bench = FaultBench(host, folder / "server", database, store)
        shutil.copytree(base, host.folder / "models/merged")
        host.run("-m", "flows.pipeline", "resolve", *options_of(TINY)).check_returncode()
        host.run("-c", REGISTER).check_returncode()
        shutil.rmtree(host.folder / "models/merged")
        print("| fault | code | the user reads | the next run | failed checks |", flush=True)
        print("|---|---|---|---|---|", flush=True)
        for number, name in enumerate(names):
            data = f"prepare.synthetic.seed={3001 + number}"
            first = FAULTS[name](bench, data)
            again = bench.start(data).end()
            wrong = check(bench, first, again)
            failed += len(wrong)
            cells = [str(first.code), first.line, again.summary, "; ".join(wrong) or "none"]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return 1 if failed else 0


def main() -> int:
    """Run the drills; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", type=Path, default=Path("models/base"), help="a taught model")
    parser.add_argument("--keep", type=Path, help="new folder for host and logs, which stays")
    parser.add_argument("--only", nargs="*", choices=FAULTS, help="faults to inflict")
    options = parser.parse_args()
    if not (options.base / "config.json").is_file():
        parser.error(f"{options.base} holds no model. Run the stage warmstart, or name another.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = options.keep or Path(tempfile.mkdtemp(prefix="rlm-faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    folder.chmod(0o755)  # PostgreSQL runs as another user
    try:
        return drill(folder, options.base.resolve(), options.only or [*FAULTS])
    except (StoreMissingError, ConfigError) as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
