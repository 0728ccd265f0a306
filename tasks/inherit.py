"""A warm start from the registry: models/base becomes a registered version's merged weights.

Retraining goes on from the champion instead of from a model that was taught anew. Where the
weights come from stands in models/base/provenance.json and in the run's tags.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tasks import register, tracking, trained
from tasks.errors import StageError
from tasks.outputs import replacing

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

    from tasks.config import Params
    from tasks.tracking import StageRun

PROVENANCE = "provenance.json"


def run(params: Params, run: StageRun, base: Path) -> Path:
    """Write the version's weights to `base`; returns it.

    Raises:
        StageError: there is no such version, or its weights cannot be read or are others.
    """
    version = wanted(params)
    source = register.download(version)
    found, asked = register.weights_hash(source), params.warmstart.weights_hash
    if asked is not None and asked != found:
        raise StageError(
            f"warmstart: {register.named(version)} at {tracking.shown_uri()} has the weights "
            f"{found}, not {asked} (warmstart.weights_hash): is this another registry?"
        )
    told = {
        "from": f"{version.name}/{version.version}",
        "weights_hash": found,
        "run_id": version.run_id,
        "tags": {key: version.tags[key] for key in ("commit", "data_hash") if key in version.tags},
    }
    with replacing(base) as folder:
        shutil.copytree(source, folder)
        (folder / PROVENANCE).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        if questions := register.trained_on(version):
            shutil.copy(questions, folder / trained.NAME)
    run.set_tags({"base": told["from"], "base_weights_hash": told["weights_hash"]})
    return base


def wanted(params: Params) -> ModelVersion:
    """The version that `warmstart.version` names, else the champion.

    Raises:
        StageError: the registry does not have it.
    """
    name, number = params.register_.model_name, params.warmstart.version
    if number is None:
        if champion := register.champion(name):
            return champion
        raise StageError(
            f"warmstart: the registry has no champion of {name!r} to go on from; train one with "
            "warmstart.kind=nano, or name a version with warmstart.version"
        )
    return by_number(name, number)


def by_number(name: str, number: str) -> ModelVersion:
    """A version of a registered model.

    Raises:
        StageError: the registry does not have it, or fails.
    """
    with register.registry(f"{name} version {number}") as store:
        return store.get_model_version(name, number)


def origin(base: Path) -> str:
    """Which registered version a base was made from; `taught here` without one."""
    try:
        return str(json.loads((base / PROVENANCE).read_text(encoding="utf-8"))["from"])
    except (OSError, ValueError, KeyError):
        return "taught here"
