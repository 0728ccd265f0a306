"""Versions of a registered model whose weights are a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.registry import versions
from tasks.tracking import runs

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion


def add_version(weights: str, tags: dict[str, str] | None = None) -> ModelVersion:
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
