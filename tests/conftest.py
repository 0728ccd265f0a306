"""Fixtures that several test files share: one real server, and the problems it plays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
