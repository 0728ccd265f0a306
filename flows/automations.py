"""What Prefect's server does with events by itself, as `flows/automations.yaml` says.

A Prefect server keeps automations in its database; here they stand in a file, and applying it
twice changes nothing. Those that call a webhook need its address, which is kept in a Webhook block
of the server and in no file.
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


def apply(url: str | None = None, *, file: Path = FILE) -> list[str]:
    """Bring the server's automations into the file's state; returns the names that call out.

    Args:
        url: where notices go; None keeps the address that the server has, and without one those
            automations are switched off.
        file: what to apply.

    Raises:
        ConfigError: the address is no http(s) URL.
    """
    from prefect import get_client
    from prefect.events.schemas.automations import AutomationCore

    if url is not None and not url.startswith(("http://", "https://")):
        raise ConfigError(f"notify: {url!r} is no address; write it as https://host/path")
    block = _webhook(url)
    calling = []
    with get_client(sync_client=True) as client:
        for told in yaml.safe_load(file.read_text(encoding="utf-8"))["automations"]:
            wanted = _with_block(told, block)
            if any(action["type"] == CALL for action in told["actions"]):
                calling.append(str(told["name"]))
            found = client.read_automations_by_name(told["name"])
            if wanted is None:
                for automation in found:
                    client.delete_automation(automation.id)
                continue
            core = AutomationCore.model_validate(wanted)
            if found:
                client.update_automation(found[0].id, core)
            else:
                client.create_automation(core)
    return calling


def _with_block(told: dict[str, Any], block: str | None) -> dict[str, Any] | None:
    """An automation with the webhook's block in its actions; None if it needs one and has none."""
    actions = []
    for action in told["actions"]:
        if action["type"] == CALL:
            if block is None:
                return None
            action = {**action, "block_document_id": block}
        actions.append(action)
    return {**told, "actions": actions}


def _webhook(url: str | None) -> str | None:
    """Id of the Webhook block, with the address written into it; None where there is none."""
    from prefect.blocks.webhook import Webhook

    if url is not None:
        return str(Webhook(method="POST", url=url).save(BLOCK, overwrite=True))
    try:
        loaded: Any = Webhook.load(BLOCK)
    except ValueError:  # no such block
        return None
    return str(loaded._block_document_id)
