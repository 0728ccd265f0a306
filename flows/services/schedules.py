"""Keep an operator's changes to the schedules when the deployments are deployed again.

`prefect deploy` resets every schedule to `prefect.yaml`, including whether it is on, and may drop
schedules that were added by hand. Here the file only sets the state of a new schedule; later the
operator's state holds. `flows/services` deploys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import DeploymentSchedule

FILE = Path("prefect.yaml")
FLOW = "rlm"


@contextmanager
def kept() -> Iterator[None]:
    """Restore after a deployment in the block which schedules are on, and those added by hand."""
    from prefect import get_client

    deployments = yaml.safe_load(FILE.read_text(encoding="utf-8"))["deployments"]
    names = [f"{FLOW}/{deployment['name']}" for deployment in deployments]
    with get_client(sync_client=True) as client:
        before = {name: _schedules(client, name) for name in names}
        try:
            yield
        finally:
            for name, old in before.items():
                _restore(client, name, old)


def _restore(client: SyncPrefectClient, name: str, old: list[DeploymentSchedule]) -> None:
    from prefect.client.schemas.actions import DeploymentScheduleCreate

    there = {_key(schedule): schedule for schedule in _schedules(client, name)}
    for schedule in old:
        deployment, now = client.read_deployment_by_name(name).id, there.get(_key(schedule))
        if now is not None and now.active != schedule.active:
            client.update_deployment_schedule(deployment, now.id, active=schedule.active)
        if now is None and schedule.slug is None:  # added by hand: those of the file have one
            fields = {"schedule", "active", "parameters", "max_scheduled_runs"}
            copy = DeploymentScheduleCreate(**schedule.model_dump(include=fields))
            client.create_deployment_schedules(deployment, [copy])


def _schedules(client: SyncPrefectClient, name: str) -> list[DeploymentSchedule]:
    from prefect.exceptions import ObjectNotFound

    try:
        return list(client.read_deployment_by_name(name).schedules)
    except ObjectNotFound:
        return []


def _key(schedule: DeploymentSchedule) -> str:
    """Identity of a schedule before and after a deployment."""
    return schedule.slug or schedule.model_dump_json(include={"schedule", "parameters"})
