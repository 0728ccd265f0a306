"""Processes beside a test: a Python, and the services of `make up` with a shell."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from flows.services import processes
from flows.services.password import CLIENTS, SERVERS


def python(code: str, **more: Any) -> subprocess.Popen[str]:
    """A Python that runs the code with the project on its path; its output is there to be read."""
    own = {"PYTHONPATH": str(Path(__file__).parents[2]), **more.pop("env", {})}
    words = [sys.executable, "-c", code]
    return subprocess.Popen(words, env=os.environ | own, stdout=subprocess.PIPE, text=True, **more)


class Services:
    """A folder with running services, and the environment of a shell in it.

    Args:
        folder: the folder.
        variables: more of the environment.
    """

    def __init__(self, folder: Path, **variables: str) -> None:
        port = processes.free_port()
        own = {CLIENTS, SERVERS, *processes.DATABASES}
        self.folder, self.api = folder, f"http://127.0.0.1:{port}/api"
        self.shell = {name: value for name, value in os.environ.items() if name not in own} | {
            "RLM_PREFECT_PORT": str(port),
            "RLM_MLFLOW_PORT": str(processes.free_port()),
            "PREFECT_API_URL": self.api,
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            **variables,
        }

    def __call__(self, *words: str, code: int = 0) -> str:
        """Output of a command in the folder, which ends with this code."""
        told = subprocess.run(
            [f"{Path(sys.executable).parent}/{words[0]}", *words[1:]],
            cwd=self.folder,
            env=self.shell,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert told.returncode == code, told.stdout
        return told.stdout


@contextmanager
def services_up(folder: Path, config: pytest.Config, **more: str) -> Iterator[tuple[Services, str]]:
    """The services while the block runs, and what their start printed.

    Another Prefect server of these tests must have started before: its empty tables are used.
    """
    (folder / ".run").mkdir(exist_ok=True)
    tables = config.cache.mkdir("prefect") / f"{version('prefect')}.db"
    shutil.copy(tables, folder / ".run/prefect.db")
    run = Services(folder, **more)
    try:
        yield run, run("python", "-m", "flows.services", "up")
    finally:
        run("python", "-m", "flows.services", "down")
