"""Fixtures that several test files share: one real server, and the problems it plays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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
