"""Versions of a registered model whose weights are a text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.policies import scripted
from agent.policies.base import Policy
from benchmarks.exploits.fields_expert import fields_expert
from tasks.registry import versions
from tasks.tracking import runs

SCRIPTS: dict[str, Callable[[], Policy]] = {
    "expert": fields_expert,
    "silent": lambda: scripted.Scripted(lambda seen: scripted.block("FINAL([])")),
}
"""Policies that can be named by the weights of a version."""


def add_version(weights: str, tags: dict[str, str] | None = None) -> Any:
    """A new version of `rlm`, whose files are in the working folder."""
    store = runs.client(runs.tracking_uri())
    number = len(versions.list_versions("rlm")) + 1
    if number == 1:
        store.create_registered_model("rlm")
    source = Path(f"kept-{number}")  # relative, so that a copy of the folder is whole
    folder = source / versions.ARTIFACT
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_text(weights)
    tags = {"weights_hash": versions.weights_hash(folder), **(tags or {})}
    store.create_model_version("rlm", source=str(source), tags=tags)
    return versions.get_version("rlm", str(number))
