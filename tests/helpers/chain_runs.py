"""Records of chains in MLflow and Prefect, and the folder in which a test plays them."""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from env import variables
from tasks.tracking import runs as tracking

ROOT = Path(__file__).resolve().parents[2]


def copy_project(folder: Path, names: Iterable[str]) -> None:
    """Copy files and folders of the project's code into a folder without git."""
    for name in names:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)


@contextmanager
def in_folder(path: Path) -> Iterator[None]:
    """The working folder of a chain with its own MLflow store; no variable of another run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}/mlflow.db")
        patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        for name in ("RLM_ENV_URL", variables.CHAIN, variables.PARENT_RUN):
            patch.delenv(name, raising=False)
        yield
        os.environ.pop(variables.CHAIN, None)


def runs(name: str) -> list[Any]:
    """MLflow runs with a tag `stage`, the newest first."""
    store = tracking.client(tracking.tracking_uri())
    experiment = tracking.experiment_id(tracking.EXPERIMENT)
    return list(store.search_runs([experiment], f"tags.stage = '{name}'"))


def flow_runs(url: str, state: str, since: datetime) -> list[dict[str, Any]]:
    """Flow runs in a state since a moment, because other tests share the server."""
    wanted = {"state": {"name": {"any_": [state]}}, "start_time": {"after_": since.isoformat()}}
    answer = httpx.post(f"{url}/flow_runs/filter", json={"flow_runs": wanted})
    return list(answer.raise_for_status().json())


def environments() -> list[str]:
    """Command lines of environment servers that this process started and that still run."""
    lines = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    return [line for line in lines if "env.server.app" in line]
