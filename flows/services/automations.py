"""Automations of Prefect's server, from `flows/services/automations.yaml`.

The server keeps automations in its database; applying the file twice changes nothing. A webhook's
address is secret: it is kept in a Webhook block of the server and in no file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tasks.errors import ConfigError

FILE = Path(__file__).with_name("automations.yaml")
BLOCK = "rlm-notices"
"""The Webhook block that holds the address."""
CALL = "call-webhook"


def apply(url: str | None = None) -> list[str]:
    """Make the server's automations equal to the file's; return the names that call a webhook.

    Args:
        url: the webhook's address. None keeps the server's address; if it has none, the
            automations that need it are deleted.

    Raises:
        ConfigError: the address is not an http(s) URL.
    """
    from prefect import get_client
    from prefect.events.schemas.automations import AutomationCore

    if url is not None and not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"notify: {url!r} is not an http(s) address. Write it as https://host/path."
        )
    block = _webhook(url)
    calling = []
    with get_client(sync_client=True) as client:
        for entry in yaml.safe_load(FILE.read_text(encoding="utf-8"))["automations"]:
            wanted = _with_block(entry, block)
            if any(action["type"] == CALL for action in entry["actions"]):
                calling.append(str(entry["name"]))
            automations = client.read_automations_by_name(entry["name"])
            if wanted is None:
                for automation in automations:
                    client.delete_automation(automation.id)
                continue
            core = AutomationCore.model_validate(wanted)
            if automations:
                client.update_automation(automations[0].id, core)
            else:
                client.create_automation(core)
    return calling


def _with_block(entry: dict[str, Any], block: str | None) -> dict[str, Any] | None:
    """The automation with the block's id in its actions; None if it needs a block without one."""
    actions = []
    for action in entry["actions"]:
        if action["type"] == CALL:
            if block is None:
                return None
            action = {**action, "block_document_id": block}
        actions.append(action)
    return {**entry, "actions": actions}


def _webhook(url: str | None) -> str | None:
    """Id of the Webhook block, after saving a given address in it; None without a block."""
    from prefect.blocks.webhook import Webhook

    if url is not None:
        return str(Webhook(method="POST", url=url).save(BLOCK, overwrite=True))
    try:
        loaded: Any = Webhook.load(BLOCK)
    except ValueError:  # the block does not exist
        return None
    return str(loaded._block_document_id)
