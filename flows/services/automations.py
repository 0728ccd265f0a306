"""Automations of Prefect's server, from `flows/services/automations.yaml`.

The server keeps automations in its database; applying the file twice changes nothing.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from tasks.errors import StageError

FILE = Path(__file__).with_name("automations.yaml")


def apply() -> None:
    """Make the server's automations of these names equal to the file's.

    Raises:
        StageError: the server has stopped.
    """
    import httpx
    from prefect import get_client
    from prefect.events.schemas.automations import AutomationCore

    entries = yaml.safe_load(FILE.read_text(encoding="utf-8"))["automations"]
    try:
        with get_client(sync_client=True) as client:
            for core in map(AutomationCore.model_validate, entries):
                if automations := client.read_automations_by_name(core.name):
                    client.update_automation(automations[0].id, core)
                else:
                    client.create_automation(core)
    except httpx.TransportError as error:
        raise StageError("Prefect's server has stopped. Run make up again.") from error
