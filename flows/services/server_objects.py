"""Work pool and automations of Prefect's server, which keeps them in its database.

Applying them twice changes nothing. The automations are in `flows/services/automations.yaml`.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from tasks.errors import StageError

POOL = "local"
FILE = Path(__file__).with_name("automations.yaml")


def apply() -> None:
    """Make the server's pool and its automations of these names equal to ours.

    Raises:
        StageError: the server has stopped, or refuses.
    """
    import httpx
    from prefect import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.events.schemas.automations import AutomationCore
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    # One run at a time, of any deployment: they all work in this folder.
    pool = WorkPoolCreate(
        name=POOL, type=ProcessWorker.type, base_job_template=template, concurrency_limit=1
    )
    entries = yaml.safe_load(FILE.read_text(encoding="utf-8"))["automations"]
    try:
        with get_client(sync_client=True) as client:
            client.create_work_pool(pool, overwrite=True)
            for core in map(AutomationCore.model_validate, entries):
                if automations := client.read_automations_by_name(core.name):
                    client.update_automation(automations[0].id, core)
                else:
                    client.create_automation(core)
    except httpx.HTTPError as error:
        raise StageError(f"Prefect's server failed ({error}). Run make up again.") from error
