"""Bases that no stage teaches: a registered version's merged weights, or `model.source` as it is.

Retraining continues from the champion instead of a newly taught model. The origin of the weights
is in models/base/provenance.json and in the run's tags. `agent/models/base_model.py` writes bases
in 16 bit or NF4.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks import paths
from tasks.errors import StageError, as_stage_error
from tasks.io import read_json, replacing, write_json
from tasks.registry import trained_questions, versions
from tasks.reporting import progress
from tasks.tracking import runs

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

    from tasks.config.params import Params
    from tasks.tracking.runs import StageRun

PROVENANCE = "provenance.json"


def write_base(params: Params, run: StageRun, base: Path) -> Path:
    """Write the version's weights to `base`, and return it.

    Raises:
        StageError: the version does not exist, or its weights are unreadable or differ.
    """
    version = wanted(params)
    source = versions.download(version)
    digest, expected = versions.weights_hash(source), params.warmstart.weights_hash
    if expected is not None and expected != digest:
        raise StageError(
            f"{versions.named(version)} at {runs.shown_uri()} has the weights {digest}, not "
            f"{expected}. Set MLFLOW_TRACKING_URI to the right registry, or warmstart.weights_hash."
        )
    provenance = {
        "from": f"{version.name}/{version.version}",
        "weights_hash": digest,
        "run_id": version.run_id,
        "tags": {key: version.tags[key] for key in ("commit", "data_hash") if key in version.tags},
    }
    with replacing(base) as folder:
        _copy(params, source, folder)
        write_json(folder / PROVENANCE, provenance)
        if questions := versions.trained_on(version):
            shutil.copy(questions, folder / trained_questions.NAME)
    run.set_tags({"base": provenance["from"], "base_weights_hash": digest})
    return base


def write_source(params: Params, run: StageRun, folder: Path) -> str:
    """Write `model.source` and, with `nf4`, its twin into a folder; returns the origin.

    `paths.BARE` keeps them until the base is complete, so that they are made once.

    Raises:
        PolicyError: the model cannot be read or adapted, or the disk has no room.
    """
    from agent.models import base_model, model_files

    dtype = model_files.compute_dtype(model_files.this_device())
    settings = [params.model.model_dump(mode="json"), params.train.lora.targets, str(dtype)]
    bare = read_json(paths.BARE / PROVENANCE)
    if bare.get("settings") != settings:
        forget_source()
        with replacing(paths.BARE) as new, progress.doing(f"read {params.model.source}"):
            made = base_model.prepare_base(params.model, new, targets=params.train.lora.targets)
            bare = {"from": made.origin, "settings": settings}
            write_json(new / PROVENANCE, bare)
    origin = str(bare["from"])
    if folder != paths.BARE:
        shutil.copytree(paths.BARE, folder, copy_function=_link)
        write_json(folder / PROVENANCE, {"from": origin})  # replaces the link
    run.set_tags({"base": origin})
    return origin


def forget_source() -> None:
    """Remove `paths.BARE`; what a kill leaves of it is of no settings."""
    (paths.BARE / PROVENANCE).unlink(missing_ok=True)
    shutil.rmtree(paths.BARE, ignore_errors=True)


def _link(source: str, target: str) -> None:
    """Give a file another name where the file system can; nobody changes it in place."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@as_stage_error()
def _copy(params: Params, source: Path, folder: Path) -> None:
    """Write a version's weights as a base, in the format that `model.quantisation` names."""
    if params.model.quantisation == "none":
        shutil.copytree(source, folder)
        return
    from agent.models.base_model import prepare_base

    # The version's tokenizer has its template and arguments already.
    own: dict[str, Any] = {"revision": None, "template": "own", "template_kwargs": {}}
    prepare_base(params.model.model_copy(update={"source": str(source), **own}), folder)


def wanted(params: Params) -> ModelVersion:
    """The version that `warmstart.version` names, else the champion.

    Raises:
        StageError: the version does not exist, or the registry fails.
    """
    name, number = params.register_.model_name, params.warmstart.version
    if number is None:
        if champion := versions.champion(name):
            return champion
        raise StageError(
            f"the registry has no champion of {name!r} to continue from. Train one with "
            "warmstart.kind=nano, or name a version with warmstart.version."
        )
    return versions.get_version(name, number)
