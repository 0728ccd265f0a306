"""Automations of Prefect's server, from `flows/services/automations.yaml`.

The server keeps automations in its database; applying the file twice changes nothing.
"""

from __future__ import annotations

from pathlib import Path

import yaml

FILE = Path(__file__).with_name("automations.yaml")


def apply() -> None:
    """Make the server's automations of these names equal to the file's."""
    from prefect import get_client
    from prefect.events.schemas.automations import AutomationCore

    with get_client(sync_client=True) as client:
        for entry in yaml.safe_load(FILE.read_text(encoding="utf-8"))["automations"]:
            core = AutomationCore.model_validate(entry)
            if automations := client.read_automations_by_name(entry["name"]):
                client.update_automation(automations[0].id, core)
            else:
                client.create_automation(core)
