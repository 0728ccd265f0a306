"""Fixtures that several test files share: an environment with its problems, a Prefect server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pandas as pd
import pytest

from env.problems.schema import to_row
from env.problems.store import ProblemStore
from tasks import deploy
from tasks.config import Params, resolve


@pytest.fixture(scope="session")
def server_params() -> Params:
    """The default settings with few problems; what the session's server serves."""
    return resolve(
        overrides=[
            "threads=1",  # stages set it for the whole process; two on busy cores spin
            "prepare.synthetic.groups={train: 8, validation: 2, test: 8}",
            "env.allow_documents=true",
        ]
    )


@pytest.fixture(scope="session")
def server_url(server_params: Params) -> Iterator[str]:
    """Address of a real server that lives as long as the test session."""
    with deploy.local_server(server_params, data=None) as url:
        yield url


@pytest.fixture(scope="session")
def server_problems(server_params: Params) -> ProblemStore:
    """The server's problems with their gold: for oracles, never for clients."""
    return ProblemStore.generate(server_params.prepare.synthetic)


@pytest.fixture
def served_folder(
    server_url: str,
    server_params: Params,
    server_problems: ProblemStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """The working folder: the server's test problems are its data, the server its environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLM_ENV_URL", server_url)
    rows = [
        to_row(server_problems.get(problem))
        for level in server_params.prepare.synthetic.levels
        for problem in server_problems.ids("test", level)
    ]
    test = Path("data/problems/test.parquet")
    test.parent.mkdir(parents=True)
    pd.DataFrame(rows).to_parquet(test)
    return tmp_path


@pytest.fixture(scope="module")
def prefect_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server with its scheduler, on a fresh database."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = tmp_path_factory.mktemp("prefect")
    log = (home / "server.log").open("wb")
    server = subprocess.Popen(
        [Path(sys.executable).parent / "prefect", "server", "start", "--port", str(port)],
        env={
            **os.environ,
            "PREFECT_HOME": str(home),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "1",
        },
        cwd=home,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}/api"
    deadline = time.monotonic() + 120
    try:
        while True:
            assert server.poll() is None, (home / "server.log").read_text()
            assert time.monotonic() < deadline, "Prefect's server did not start"
            try:
                if httpx.get(f"{url}/health").is_success:
                    break
            except httpx.HTTPError:
                time.sleep(0.2)
        from prefect.events.worker import EventsWorker
        from prefect.settings import PREFECT_API_URL, temporary_settings

        with temporary_settings({PREFECT_API_URL: url}):
            yield url
            # What sends events holds on to this server, and would ask it for hours when it is gone.
            EventsWorker.drain_all(timeout=10)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=30)
