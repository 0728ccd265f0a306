"""Hosts that share a store: one run at a time over all of them, and takeovers.

Prefect's global limit `rlm` admits one run; its lease ends a minute after the run's host died.
The number in `tasks/shared/holder.py` keeps a run out that lost its lease without knowing it. With
`RLM_REMOTE` unset, a run needs none of this.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NoReturn

from prefect.runtime import flow_run
from rich.console import Console

from env import variables
from flows import notifications
from flows.runtime import BusyError
from flows.services import processes
from flows.services.hosts import LIMIT, POOLS, require_prefect
from tasks.errors import ConfigError, StageError
from tasks.shared import holder, remote
from tasks.tracking import runs

LEASE_S = 60.0
WAIT_S = 180.0
"""Seconds to wait for another host's run; a dead one's lease ends in less."""


@contextmanager
def holding(request: str, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the shared store for one run, and close what a dead one left open.

    Args:
        request: text of the request, equal for a run and its restarts.
        wait_s: seconds to wait for another host's run.

    Raises:
        BusyError: another host's run holds the limit.
        ConfigError: a variable of the stores is missing or wrong.
        StageError: a server or the store does not answer, or another host took the run.
    """
    if remote.address() is None:
        yield
        return
    require_servers()
    with ExitStack() as stack:
        _lease(stack, wait_s)
        died = stack.enter_context(holder.held(request, flow_run.id))
        if died:
            Console().print(f"Taking over: the run on {died['host']} did not end.")
            if died["mlflow_run"]:
                runs.close_left(died["mlflow_run"])
            notifications.crashed(died["flow_run"])
        yield


def _lease(stack: ExitStack, wait_s: float) -> None:
    from prefect.concurrency.sync import concurrency
    from prefect.exceptions import PrefectException

    try:
        # A lost server does not end the run: if another one took over, the number tells.
        stack.enter_context(
            concurrency(
                LIMIT,
                timeout_seconds=wait_s,
                lease_duration=LEASE_S,
                strict=True,
                raise_on_lease_renewal_failure=False,
            )
        )
    except TimeoutError:
        raise BusyError(
            f"another host's run goes on (it holds Prefect's limit {LIMIT!r} after a wait of "
            f"{wait_s:g} s). Wait for it, or cancel it on Prefect's page."
        ) from None
    except PrefectException as error:
        raise StageError(
            f"Prefect's limit {LIMIT!r} cannot be taken ({error}). Run `python -m flows.services "
            f"up` with {variables.REMOTE} set, where Prefect's server runs."
        ) from None


def require_servers() -> None:
    """Check that the servers that all hosts share let this host in.

    Raises:
        ConfigError: MLflow's address is missing, or is not a server's.
        StageError: a server does not answer, or refuses.
    """
    import httpx

    tracking = runs.tracking_uri().rstrip("/")
    if not tracking.startswith("http"):
        raise ConfigError(
            f"{variables.REMOTE} is set, but MLFLOW_TRACKING_URI names no server "
            f"({runs.shown_uri()}). Set both: hosts share one registry."
        )
    require_prefect()
    # Its health page answers under every name and without a database.
    search = f"{tracking}/api/2.0/mlflow/experiments/search?max_results=1"
    try:
        status = str(httpx.get(search, timeout=30.0).status_code)
    except httpx.HTTPError as error:
        status = type(error).__name__
    if status != "200":
        raise StageError(
            f"MLFLOW_TRACKING_URI: the server at {runs.without_password(tracking)} cannot list its "
            f"experiments ({status}). Start it, look at its database, or name this address in its "
            "MLFLOW_SERVER_ALLOWED_HOSTS."
        )


def work(pool: str) -> NoReturn:
    """Check what runs on this host will need, then become the worker of a pool.

    Raises:
        ConfigError: the pool is unknown, its card is missing, or a variable is missing or wrong.
        StageError: a server or the store does not answer.
    """
    from flows.machine import inspect

    if pool not in POOLS:
        raise ConfigError(f"worker: the pool {pool!r} is unknown. Use one of {[*POOLS]}.")
    if pool == "gpu" and not (machine := inspect()).cards:
        raise ConfigError(
            f"worker: this host has no card for the pool gpu ({machine.cards_fault or 'no driver'}"
            "). Run `python -m flows.doctor`, or serve the pool cpu."
        )
    if remote.address() is None:
        raise ConfigError(
            f"worker: {variables.REMOTE} is not set. Set it to the store of all hosts."
        )
    require_servers()
    remote.store().read(holder.RECORD)
    command = ["prefect", "worker", "start", "--pool", pool, "--limit", "1"]
    os.environ[variables.FOLDER] = os.getcwd()  # deployments name no folder of a host
    os.execv(processes.BIN / command[0], command)
