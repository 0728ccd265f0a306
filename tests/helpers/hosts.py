"""Hosts that share an S3 server, Prefect and MLflow: folders, each with the project's code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from env import variables
from flows.services.processes import free_port

ROOT = Path(__file__).resolve().parents[2]
CODE = (".dvc", "agent", "env", "flows", "mlflow", "profiles", "rewards", "tasks")
FILES = (".dvcignore", "constraints.txt", "dvc.yaml", "params.yaml", "prefect.toml", "prefect.yaml")
BUCKET = "rlm"


@dataclass
class Host:
    """A folder with the project's code, and the variables of its processes."""

    folder: Path
    variables: dict[str, str]

    @classmethod
    def make(cls, folder: Path, variables: Mapping[str, str]) -> Host:
        """Copy the code into a new folder; nothing in it belongs to another host."""
        folder.mkdir(parents=True)
        skipped = shutil.ignore_patterns("__pycache__", "cache", "tmp", "config.local")
        for name in CODE:
            shutil.copytree(ROOT / name, folder / name, ignore=skipped)
        for name in FILES:
            shutil.copy(ROOT / name, folder)
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
            "OMP_NUM_THREADS": "1",
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

    def processes(self) -> list[psutil.Process]:
        """Living processes of this host."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                here = str(self.folder) in process.environ().get("PYTHONPATH", "").split(":")
                if here and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def kill(self) -> None:
        """Kill all processes of this host until none is left."""
        while found := self.processes():
            for process in found:
                with suppress(psutil.Error):
                    process.kill()
            time.sleep(0.2)


@contextmanager
def servers(folder: Path, store: Mapping[str, str], **stores: str) -> Iterator[dict[str, str]]:
    """Prefect's and MLflow's servers, by `flows.services up`; yields the hosts' variables.

    Args:
        folder: new folder of the servers.
        store: variables of the S3 server's clients.
        stores: variables with the servers' databases; SQLite without them.
    """
    prefect, mlflow = free_port(), free_port()
    shared = {
        **store,
        variables.REMOTE: f"s3://{BUCKET}/hosts",
        "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{mlflow}",
        "PREFECT_API_URL": f"http://127.0.0.1:{prefect}/api",
    }
    own = {
        variables.PREFECT_PORT: str(prefect),
        variables.MLFLOW_PORT: str(mlflow),
        "MLFLOW_ARTIFACTS_DESTINATION": f"s3://{BUCKET}/mlflow",
        **stores,
    }
    host = Host.make(folder, shared | own)
    try:
        done = host.run("-m", "flows.services", "up")
        if done.returncode:
            raise RuntimeError(f"up failed: {done.stdout[-1000:]}{done.stderr[-3000:]}")
        yield shared
    finally:
        host.run("-m", "flows.services", "down")
        host.kill()
