"""Deploying again keeps what an operator did to the schedules of the deployments.

`prefect deploy` brings every schedule of `prefect.yaml` back to what the file says, also whether it
is on, and may drop those that were added by hand. Here the file says which schedules there are, and
whether they are on when they are new; from then on that is the operator's. Neighbour:
`flows/services.py`, which deploys.
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
def kept(file: Path = FILE) -> Iterator[None]:
    """Deploy within the block: schedules that were on or off stay so, added ones stay there.

    Args:
        file: whose deployments are meant.
    """
    from prefect import get_client

    told = yaml.safe_load(file.read_text(encoding="utf-8"))["deployments"]
    names = [f"{FLOW}/{deployment['name']}" for deployment in told]
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
            again = DeploymentScheduleCreate(**schedule.model_dump(include=fields))
            client.create_deployment_schedules(deployment, [again])


def _schedules(client: SyncPrefectClient, name: str) -> list[DeploymentSchedule]:
    from prefect.exceptions import ObjectNotFound

    try:
        return list(client.read_deployment_by_name(name).schedules)
    except ObjectNotFound:
        return []


def _key(schedule: DeploymentSchedule) -> str:
    """By what a schedule is the same before and after."""
    return schedule.slug or schedule.model_dump_json(include={"schedule", "parameters"})
