"""Hosts of `benchmarks.cluster`: folders and processes that share nothing but the stores."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.cluster.stores import BUCKET, Postgres, S3Server
from benchmarks.faults.project import copy_code
from env import auth
from flows.runtime import PRINTED
from flows.services.processes import free_port

REMOTE = f"s3://{BUCKET}/cluster"
_STARTS = """
from prefect.deployments import run_deployment
run = run_deployment("rlm/full", parameters={parameters!r}, timeout=0)
print(run.id)
"""
_RUNS = """
import json
from prefect import get_client
with get_client(sync_client=True) as client:
    print(json.dumps([
        [str(run.id), run.state.name, (run.created.timestamp()), run.state.message or ""]
        for run in sorted(client.read_flow_runs(), key=lambda run: run.created)
    ]))
"""
_REGISTRY = """
import json
from tasks.registry import versions
from tasks.tracking import runs
found = versions.list_versions("rlm")
champion = versions.by_alias("rlm", "champion")
store = runs.client(runs.tracking_uri())
experiment = runs.experiment_id("rlm")
print(json.dumps({
    "versions": [[str(v.version), v.tags["weights_hash"]] for v in found],
    "champion": champion and str(champion.version),
    "running": len(store.search_runs([experiment], "attributes.status = 'RUNNING'")),
    "artifacts": store.get_experiment(experiment).artifact_location,
    "downloaded": [str(versions.download(v)) for v in found],
}))
"""


@dataclass
class ClusterHost:
    """A folder with the project's code, and the variables of its processes."""

    folder: Path
    variables: dict[str, str]

    @classmethod
    def make(cls, folder: Path, variables: Mapping[str, str]) -> ClusterHost:
        """Copy the code into a new folder; nothing in it belongs to another host."""
        copy_code(folder)
        return cls(folder, dict(variables))

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a process of this host."""
        foreign = ("RLM_", "PREFECT_", "MLFLOW_", "AWS_", "DVC_")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        return kept | {
            "PYTHONPATH": str(self.folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PREFECT_HOME": str(self.folder / ".prefect"),
            "DVC_SITE_CACHE_DIR": str(self.folder / ".dvc-site"),
            **self.variables,
        }

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run Python on this host; returns when it has ended."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment | variables,
            capture_output=True,
            text=True,
        )

    def ask(self, code: str) -> Any:
        """Value of the last line, as JSON, that Python code prints on this host.

        Raises:
            RuntimeError: it failed.
        """
        done = self.run("-c", code)
        if done.returncode:
            raise RuntimeError(f"{self.folder}: {done.stderr[-2000:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def start_worker(self) -> None:
        """Start the worker of the pool cpu."""
        with (self.folder / "worker.log").open("ab") as log:
            subprocess.Popen(
                [sys.executable, "-m", "flows.services", "worker", "cpu"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def processes(self) -> list[psutil.Process]:
        """All processes of this host."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if str(self.folder) in process.environ().get("PYTHONPATH", "").split(":"):
                    found.append(process)
        return found

    def send(self, number: signal.Signals) -> int:
        """Send a signal to all processes of this host until none is new; returns their number."""
        reached: set[int] = set()
        while new := [p for p in self.processes() if p.pid not in reached and _alive(p)]:
            for process in new:
                with suppress(psutil.Error):
                    process.send_signal(number)
                reached.add(process.pid)
            time.sleep(0.2)
        return len(reached)

    @property
    def output(self) -> str:
        """Output of the last run here."""
        with suppress(OSError):
            return (self.folder / PRINTED).read_text(encoding="utf-8", errors="replace")
        return ""

    def steps(self) -> list[int]:
        """Steps of the training that this host made, in order."""
        return [int(step) for step in re.findall(r"^train: step (\d+)/\d+ ", self.output, re.M)]


def _alive(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


@contextmanager
def servers(folder: Path, database: Postgres, s3: S3Server) -> Iterator[dict[str, str]]:
    """Prefect's and MLflow's servers, by `flows.services up`; yields the hosts' variables."""
    prefect, mlflow = free_port(), free_port()
    shared = {
        **s3.environment,
        auth.REMOTE: REMOTE,
        "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{mlflow}",
        "PREFECT_API_URL": f"http://127.0.0.1:{prefect}/api",
    }
    stores = {
        auth.PREFECT_PORT: str(prefect),
        auth.MLFLOW_PORT: str(mlflow),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": database.url("asyncpg", "prefect"),
        "MLFLOW_BACKEND_STORE_URI": database.url("psycopg", "mlflow"),
        "MLFLOW_ARTIFACTS_DESTINATION": f"s3://{BUCKET}/mlflow",
    }
    host = ClusterHost.make(folder, shared | stores)
    try:
        done = host.run("-m", "flows.services", "up")
        if done.returncode:
            raise RuntimeError(f"up failed: {done.stdout[-1000:]}{done.stderr[-3000:]}")
        yield shared
    finally:
        host.run("-m", "flows.services", "down")
        host.send(signal.SIGKILL)


def start_run(host: ClusterHost, parameters: Mapping[str, Any]) -> str:
    """Ask for a run of `rlm/full`; returns its id."""
    done = host.run("-c", _STARTS.format(parameters=dict(parameters)))
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout.strip().splitlines()[-1]


def flow_runs(host: ClusterHost) -> list[tuple[str, str, float, str]]:
    """Id, state, creation in seconds and message of each flow run, the oldest first."""
    return [(str(r[0]), str(r[1]), float(r[2]), str(r[3])) for r in host.ask(_RUNS)]


def registry(host: ClusterHost) -> dict[str, Any]:
    """Versions, champion, open runs and artifact address, as a host sees them."""
    found: dict[str, Any] = host.ask(_REGISTRY)
    return found


def wait_for(condition: Callable[[], bool], limit_s: float, what: str) -> float:
    """Seconds until a condition holds.

    Raises:
        TimeoutError: it did not hold in time.
    """
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > limit_s:
            raise TimeoutError(f"not within {limit_s:g} s: {what}")
        time.sleep(1.0)
    return time.monotonic() - started
