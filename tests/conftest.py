"""Fixtures that several test files share: an environment with its problems, a Prefect server."""

import gc
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, chdir, closing
from importlib.metadata import version
from pathlib import Path

import pytest
from helpers.problem_files import write_problems
from helpers.warm_python import warm_python

from env.problems.store import ProblemStore
from flows.services import processes
from tasks.config import resolve
from tasks.config.params import Params
from tasks.deployment.local import local_server
from tasks.tracking import runs

LONGEST = {"tiny chain", "trainer", "stages", "prefect", "registry", "transformers"}
"""Groups of tests that take a minute and more; if one begins last, the others wait for it."""
IDLE_SERVICES = (
    *("CANCELLATION_CLEANUP", "CLEANUP_RECONCILER", "FOREMAN", "LATE_RUNS"),
    *("PAUSE_EXPIRATIONS", "REPOSSESSOR"),
)
"""Services of a Prefect server that look for work every few seconds; no test gives them any."""


def pytest_configure(config: pytest.Config) -> None:
    """All processes of the session share one warm Python; it imports when it is first asked."""
    # A search of all that is imported for garbage takes half a second: young objects are enough.
    gc.set_threshold(*gc.get_threshold()[:2], 1000)
    os.environ["XDG_CACHE_HOME"] = str(config.rootpath / ".pytest_cache/home")
    if not hasattr(config, "workerinput"):
        stack = ExitStack()
        config.add_cleanup(stack.close)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rlm-warm-"))
        os.environ["WARM_PYTHON"] = str(stack.enter_context(warm_python(Path(folder))))


@pytest.fixture
def warm() -> str:
    """The command of a Python that has imported the slow packages."""
    return os.environ["WARM_PYTHON"]


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Torch computes on one thread: two on busy cores spin."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def trainer_imported(one_thread: None) -> None:
    """The search for garbage with which each training begins leaves out what was imported."""
    import agent.training.trainer  # noqa: F401

    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests run in one process, as do those of one `xdist_group`; the longest begin."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items.sort(key=lambda item: LONGEST.isdisjoint(item.get_closest_marker("xdist_group").args))


@pytest.fixture(scope="session")
def server_params() -> Params:
    """The default settings with few problems; what the session's server serves."""
    return resolve(
        overrides=[
            "threads=1",  # stages set it for the whole process; two on busy cores spin
            "train.processes=1",
            "prepare.synthetic.collections={train: 8, validation: 2, test: 8}",
            "env.allow_documents=true",
        ]
    )


@pytest.fixture(scope="session")
def server_url(server_params: Params) -> Iterator[str]:
    """Address of a real server that lives as long as the test session."""
    with local_server(server_params, data=None) as url:
        yield url


@pytest.fixture(scope="session")
def server_problems(server_params: Params) -> ProblemStore:
    """The server's problems with their gold: for oracles, never for clients."""
    return ProblemStore.generate(server_params.prepare.synthetic)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow store without runs: making its tables takes seconds, copying it none."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    runs.client(f"sqlite:///{path}").search_experiments(max_results=1)
    return path


@pytest.fixture
def mlflow_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_store: Path) -> Path:
    """The test's own store, which MLFLOW_TRACKING_URI names."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return Path(shutil.copy(empty_store, tmp_path))


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
    levels = server_params.prepare.synthetic.levels
    ids = [problem for level in levels for problem in server_problems.ids("test", level)]
    write_problems("data/problems/test.parquet", map(server_problems.get, ids))
    return tmp_path


@pytest.fixture(scope="session")
def prefect_server(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[str]:
    """A Prefect server with its scheduler, one for each process whose tests use it."""
    home, port = tmp_path_factory.mktemp("prefect"), processes.free_port()
    assert pytestconfig.cache is not None
    tables = pytestconfig.cache.mkdir("prefect") / f"{version('prefect')}.db"
    if tables.exists():  # making them takes longer than all else that the server does at its start
        shutil.copy(tables, home / "prefect.db")
    # The process that `prefect server start` starts, without that command.
    command = "python -m uvicorn --factory prefect.server.api.server:create_app --port"
    services = {f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in IDLE_SERVICES}
    server = processes.ServiceProcess(
        "prefect-server",
        [*command.split(), str(port)],
        f"http://127.0.0.1:{port}/api/health",
        env={
            "PREFECT_HOME": str(home),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "1",
            **services,
        },
    )
    with chdir(home):
        processes.start(server, quiet=True, bound=True)
    if not tables.exists():
        with closing(sqlite3.connect(home / "prefect.db")) as made:
            made.execute("VACUUM INTO ?", [str(home / "tables.db")])
        (home / "tables.db").replace(tables)
    yield f"http://127.0.0.1:{port}/api"
    with chdir(home):
        processes.stop(server, quiet=True)


@pytest.fixture(scope="module")
def prefect_url(prefect_server: str) -> Iterator[str]:
    """The session's Prefect server, which this module's flows tell of themselves."""
    from prefect.events.worker import EventsWorker
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: prefect_server}):
        yield prefect_server
        # Senders of events keep this server's address and would ask it for hours when it is gone.
        EventsWorker.drain_all(timeout=10)
