"""Work pools, deployments and automations of hosts that share a store (docs/scaling.md)."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import yaml

from env import variables
from flows.services import automations, processes, schedules
from tasks.errors import ConfigError, StageError
from tasks.shared import remote
from tasks.tracking import runs

POOLS = {"cpu": "", "gpu": "-gpu"}
"""Suffix of the deployments in each pool: `rlm/full` runs on hosts of the pool cpu."""
LIMIT = "rlm"
"""Prefect's global limit of runs at a time."""
CLOCKS_S = 30.0
"""Largest difference of clocks: a heartbeat has the time of its host. It is sent every 30 s and
missed after 90 s."""
LEASE_STORAGE = (
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE",
    "prefect.server.concurrency.lease_storage.filesystem",
)
"""Variable of Prefect's server: leases outlive its restart, which would else keep their slots."""
AUTOMATIONS = Path(__file__).with_name("hosts.yaml")


def require_buckets() -> None:
    """Check each place in S3 that a variable of the servers names.

    Raises:
        ConfigError: the key is refused, a bucket does not exist, or the extra is not installed.
        StageError: the server does not answer.
    """
    remote.address()
    for variable in (variables.REMOTE, "MLFLOW_ARTIFACTS_DESTINATION"):
        place = os.environ.get(variable, "").rstrip("/")
        if place.startswith("s3://"):
            remote.opened(place, variable).read("holder.json")


def require_answer(variable: str, health: str) -> None:
    """Check that a server of all hosts answers.

    Args:
        variable: variable that holds its address, for the message.
        health: its health address.

    Raises:
        StageError: it does not.
    """
    if not processes.answers(health):
        raise StageError(
            f"{variable}: the server at {runs.without_password(health)} does not answer. Hosts "
            f"with {variables.REMOTE} share it: start it, or correct the address."
        )


def require_prefect() -> None:
    """Check that Prefect's server answers, lets this host in and has its time.

    Raises:
        ConfigError: it refuses, or the clocks differ.
        StageError: it does not answer.
    """
    import httpx
    from prefect import get_client
    from prefect.settings import PREFECT_API_URL

    url = PREFECT_API_URL.value() or ""
    if not url.rstrip("/").endswith("/api"):
        raise ConfigError(
            "PREFECT_API_URL does not end in /api. Write it as http://SERVER:4200/api."
        )
    require_answer("PREFECT_API_URL", f"{url}/health")
    try:
        with get_client(sync_client=True) as client:
            date = client.request("GET", "/admin/version").headers["date"]
    except httpx.HTTPStatusError as error:
        raise ConfigError(
            f"PREFECT_API_URL: the server refuses this host ({error.response.status_code}). Set "
            "PREFECT_API_AUTH_STRING to the value of its PREFECT_SERVER_API_AUTH_STRING."
        ) from None
    behind_s = (parsedate_to_datetime(date) - datetime.now(UTC)).total_seconds()
    if abs(behind_s) > CLOCKS_S:
        order = "behind" if behind_s > 0 else "ahead of"
        raise ConfigError(
            f"the clock of this host is {abs(behind_s):.0f} s {order} that of Prefect's server, so "
            "living runs may count as dead, or dead ones as alive. Set both clocks (NTP)."
        )


def deploy() -> None:
    """Create the limit, the pools, a deployment of each flow in each pool, and the automations.

    Raises:
        ConfigError: Prefect's server refuses this host.
        StageError: it does not answer, or one of its commands failed.
    """
    from prefect import get_client

    require_prefect()
    with get_client(sync_client=True) as client:
        client.upsert_global_concurrency_limit_by_name(LIMIT, 1)
    for pool in POOLS:
        processes.run_prefect("work-pool", "create", pool, "--type", "process", "--overwrite")
        processes.run_prefect("work-pool", "inspect", pool)
        # Other requests wait in the pool, as on one machine.
        processes.run_prefect("work-pool", "set-concurrency-limit", pool, "1")
    file = Path("prefect.hosts.yaml")
    file.write_text(yaml.safe_dump(deployments(), sort_keys=False), encoding="utf-8")
    try:
        with schedules.kept(file):
            processes.run_prefect("--no-prompt", "deploy", "--all", "--prefect-file", str(file))
    finally:
        file.unlink()
    automations.apply()
    automations.apply(file=AUTOMATIONS)


def deployments() -> dict[str, object]:
    """Content of prefect.yaml with its deployments once in each pool."""
    data = yaml.safe_load(schedules.FILE.read_text(encoding="utf-8"))
    data.pop("definitions")
    # Else Prefect would note the folder of this machine; a worker fills in its own.
    step = "prefect.deployments.steps.set_working_directory"
    data["pull"] = [{step: {"directory": f"{{{{ ${variables.FOLDER} }}}}"}}]
    data["deployments"] = [
        {
            **entry,
            "name": entry["name"] + suffix,
            "work_pool": {**entry["work_pool"], "name": pool},
        }
        for pool, suffix in POOLS.items()
        for entry in data["deployments"]
    ]
    return data
