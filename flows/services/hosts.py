"""Work pools, deployments and automations of hosts that share a store (docs/scaling.md)."""

from __future__ import annotations

from pathlib import Path

import yaml

from env import variables
from flows.services import automations, processes, schedules
from tasks.errors import StageError

POOLS = {"cpu": "", "gpu": "-gpu"}
"""Suffix of the deployments in each pool: `rlm/full` runs on hosts of the pool cpu."""
LIMIT = "rlm"
"""Prefect's global limit of runs at a time."""
LEASE_STORAGE = (
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE",
    "prefect.server.concurrency.lease_storage.filesystem",
)
"""Store leases on disk. Otherwise a restarted server forgets them, and their slots stay taken."""
AUTOMATIONS = Path(__file__).with_name("hosts.yaml")


def require_prefect() -> None:
    """Check that Prefect's server answers and lets this host in.

    Raises:
        StageError: it does not.
    """
    import httpx
    from prefect import get_client
    from prefect.settings import PREFECT_API_URL

    try:
        with get_client(sync_client=True) as client:
            client.request("GET", "/admin/version")
    except httpx.HTTPError as error:
        raise StageError(
            f"PREFECT_API_URL: {PREFECT_API_URL.value()} cannot be used ({type(error).__name__}: "
            f"{error}). Start Prefect's server, which hosts with {variables.REMOTE} share, or "
            "correct the address (it ends in /api) and PREFECT_API_AUTH_STRING."
        ) from None


def deploy() -> None:
    """Create the limit, the pools, a deployment of each flow in each pool, and the automations.

    Raises:
        StageError: Prefect's server does not answer, or one of its commands failed.
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
