"""Versions of the registered model: search, download, and comparison by weights.

All calls of the registry go through `registry`, which turns failures into one error. The stage
`register` adds versions, `champions.py` moves the alias.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tasks import paths
from tasks.config import RESOLVED, read_resolved
from tasks.errors import ConfigError, StageError, stage_named
from tasks.io import digest, replacing
from tasks.registry import trained_questions
from tasks.tracking import lineage, runs

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

    from tasks.config.params import Params

ARTIFACT = f"artifacts/{paths.MERGED.name}"
"""Folder of the weights within a version's artifact."""
FETCHED = paths.RUN / "registry"
"""Cache of artifacts from a store that is not on this machine."""
SERVING = "serving"
"""Tag of a version: a digest of the settings that it answers with."""
BESIDE = (RESOLVED.name, trained_questions.NAME)
"""Files beside the weights in a version's artifact."""
FILES = "files_hash"
"""Tag of a version: `files_hash` of its artifact."""
LAST_CHAMPION = "champion"
"""Tag of the registered model: the next champion, set before the alias moves."""

_URI = re.compile(r"models:/([^/@]+)(?:/(?=\d+$)|@)(.+)")


def weights_hash(folder: Path) -> str:
    """First 16 hex digits of SHA-256 over the weights alone; configs contain paths and dates."""
    return lineage.files_hash(sorted(folder.rglob("*.safetensors")), folder)


def files_hash(*parts: Path) -> str:
    """The same over all other files in folders or of this name: configs, template, settings."""
    inside = (path for part in parts for path in [part, *sorted(part.rglob("*"))])
    files = [path for path in inside if path.is_file() and path.suffix != ".safetensors"]
    return digest([lineage.files_hash([path], path.parent) for path in files])


def serving(params: Params) -> str:
    """Value of the tag `serving` for these settings: a digest of how episodes are played."""
    return digest(params.model_copy(update={"generation": params.serving}).of_episodes())


def list_versions(name: str) -> list[ModelVersion]:
    """All registered versions with their tags, the newest first; empty for an unknown model.

    Raises:
        StageError: the registry fails.
    """
    with registry(f"the versions of {name} cannot be listed") as store:
        versions = store.search_model_versions(f"name = '{name}'")
    return sorted(versions, key=lambda version: int(version.version), reverse=True)


def get_version(name: str, number: str) -> ModelVersion:
    """One registered version, with its tags and aliases.

    Raises:
        StageError: the version does not exist, or the registry fails.
    """
    there = [str(version.version) for version in list_versions(name)]
    if number not in there:
        raise StageError(
            f"{name} has no version {number!r}. Choose one of: {', '.join(there) or '(empty)'}."
        )
    with registry(f"{name} version {number} cannot be read") as store:
        return store.get_model_version(name, number)


@contextmanager
def registry(doing: str) -> Iterator[MlflowClient]:
    """Client of the registry; failures become one error that names the action and the address.

    Args:
        doing: the action, for the message.

    Raises:
        StageError: the server is gone, the database is locked or broken, or the requested item
            is missing.
    """
    with stage_named(doing), runs.answering() as store:
        yield store


def registered(name: str) -> RegisteredModel | None:
    """The model with its aliases and tags; None if nothing was registered yet.

    Raises:
        StageError: the registry fails.
    """
    with registry(f"{name} cannot be looked up") as store:
        return next(iter(store.search_registered_models(f"name = '{name}'")), None)


def by_alias(name: str, alias: str) -> ModelVersion | None:
    """The version of an alias, with its tags and aliases; None if the alias is not set.

    Raises:
        StageError: the registry fails.
    """
    from mlflow.exceptions import MlflowException

    with registry(f"{name}@{alias}") as store:
        try:
            return store.get_model_version_by_alias(name, alias)
        except MlflowException as error:
            # The alias or the model does not exist.
            if error.error_code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"):
                return None
            raise


def parse(uri: str) -> tuple[str, str] | None:
    """Name, and number or alias, of `models:/NAME/VERSION` or `models:/NAME@ALIAS`; else None."""
    found = _URI.fullmatch(uri)
    return (found[1], found[2]) if found else None


def find(name: str, wanted: str) -> ModelVersion | None:
    """The version of a number or an alias; None if the alias is not set.

    Raises:
        StageError: the number does not exist, or the registry fails.
    """
    if wanted.isdecimal():
        return get_version(name, wanted)
    return champion(name) if wanted == "champion" else by_alias(name, wanted)


def champion(name: str) -> ModelVersion | None:
    """The version that serves; None if no version ever did.

    Raises:
        StageError: the registry fails, or the version that was champion is deleted.
    """
    model_version = by_alias(name, "champion")
    model = registered(name)
    if model_version is not None or model is None:
        return model_version
    last = model.tags.get(LAST_CHAMPION)
    there = [str(version.version) for version in list_versions(name)]
    if last is None or last in there:  # the alias never moved to it, so it never served
        return None
    raise StageError(
        f"the champion of {name} was version {last}, which is no longer in the registry. Name "
        "another with `rlm rollback --to VERSION`, one of: "
        f"{', '.join(there) or '(empty)'}."
    )


def download(version: ModelVersion) -> Path:
    """Folder of a version's merged Hugging Face weights, on this machine.

    It may be the store's own folder: never write to it. A remote artifact is fetched once.

    Raises:
        StageError: the artifact is gone, or its weights differ from the registered ones.
    """
    folder = artifact(version) / ARTIFACT
    weights = weights_hash(folder) if any(folder.rglob("*.safetensors")) else "no weights at all"
    wanted = version.tags.get("weights_hash", weights)
    if weights != wanted:
        raise StageError(
            f"{named(version)}: {folder} contains other weights ({weights}) than were registered "
            f"({wanted}). Restore the artifact, or delete the version."
        )
    found = files_hash(folder, *(folder.with_name(name) for name in BESIDE))
    if version.tags.get(FILES, found) != found:
        raise StageError(
            f"{named(version)}: {folder.parent} contains other files than were registered. Restore "
            "the artifact, or delete the version."
        )
    return folder


def artifact(version: ModelVersion) -> Path:
    """Folder of a version's whole artifact: weights, settings, code.

    Raises:
        StageError: it is gone.
    """
    from mlflow.artifacts import download_artifacts

    uri = runs.tracking_uri()
    folder = FETCHED / "-".join(
        [version.name, str(version.version), version.tags.get("weights_hash", "")]
    )
    unreadable = f"{named(version)}: its artifact cannot be read"
    try:
        with registry(unreadable) as store:
            if uri.startswith("sqlite:"):
                # Not by `models:/...`: MLflow would write a file into its own store.
                place = store.get_model_version_download_uri(version.name, str(version.version))
                return Path(download_artifacts(place))
            if not folder.is_dir():
                with replacing(folder) as temporary:
                    download_artifacts(version.source, dst_path=str(temporary))
    except OSError as error:
        raise StageError(f"{unreadable} ({error}). Restore it.") from error
    return folder


def settings(version: ModelVersion) -> Params:
    """Settings that a version was registered with.

    Raises:
        StageError: the artifact is gone.
        ConfigError: this version of the code cannot read them.
    """
    folder = artifact(version)
    try:
        return read_resolved(folder / "artifacts" / RESOLVED.name)
    except ConfigError as error:
        fault, *_ = str(error).splitlines()
        raise ConfigError(
            f"{named(version)} was registered by other code ({fault}). To ask it with the settings "
            f"of today, name its folder: --model {folder / ARTIFACT}"
        ) from None


def trained_on(version: ModelVersion) -> Path | None:
    """List of a version's trained questions (`trained_questions.py`); None if it has none.

    Raises:
        StageError: the artifact is gone.
    """
    path = artifact(version) / "artifacts" / trained_questions.NAME
    return path if path.is_file() else None


def named(version: ModelVersion) -> str:
    """Name of a version in messages, such as `rlm version 3`."""
    return f"{version.name} version {version.version}"
