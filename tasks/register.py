"""Stage `register`: a model version with its lineage in the MLflow registry.

The merged model is logged as a pyfunc from code (`mlflow/recursive_model.py`) with its Hugging
Face folder as artifact. Weights that some version has make no new one, unless they are to be
served otherwise. That of `models/merged` is `challenger`; who becomes `champion` is for the stage
`promote` to say. Neighbours read the registry by the functions at the end: who is champion, and the
folder of a version's weights.
"""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks import lineage, tracking, trained
from tasks.config import RESOLVED, read_resolved
from tasks.errors import StageError
from tasks.outputs import replacing, write_json
from tasks.version import recorded

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

    from tasks.config import Params
    from tasks.tracking import StageRun

MERGED = Path("models/merged")
CODE = Path("mlflow/recursive_model.py")
PACKAGES = ("agent", "env", "rewards", "tasks")
"""Our packages that travel with the model, so that it loads without this folder."""
REPORT = Path("reports/registered.json")
EVALUATION = Path("reports/evaluation.json")
DATA_REPORT = Path("data/report.json")
ARTIFACT = f"artifacts/{MERGED.name}"
"""Where MLflow keeps the weights within a version's artifact."""
EXAMPLE = [
    {
        "question": "What does Kalvot score on Mirbex?",
        "documents": [
            {"id": "a.txt", "title": "Tolgum", "text": "A study of Tolgum.\nKalvot is not in it."},
            {"id": "b.txt", "title": None, "text": "Kalvot scores 41 on Mirbex."},
        ],
        "seed": 0,
    }
]
"""What a request looks like, kept with the model."""
FETCHED = Path(".run/registry")
"""What was fetched from an artifact store that is not on this machine."""
SERVING = "serving"
"""Tag of a version: how it writes when it is served, as JSON."""
LAST_CHAMPION = "champion"
"""Tag of the registered model: the version that is to be champion, set before the alias moves."""


def run(params: Params, run: StageRun) -> Path:
    """Make models/merged the challenger, as a new version unless one is the same served model.

    Raises:
        StageError: there is no merged model, its evaluation is missing, or the registry fails.
    """
    if not any(MERGED.glob("*.safetensors")):
        raise StageError(f"register: no weights in {MERGED}; run the stage export first")
    name = params.register_.model_name
    weights = weights_hash(MERGED)
    served = {"weights_hash": weights, SERVING: serving(params)}
    known = [found for found in versions(name) if served.items() <= found.tags.items()]
    if known:  # with all that was decided about them
        version = str(known[0].version)
    else:
        tags = {**served, **made_of(params), **evaluated()}
        with registry(f"{MERGED} cannot be registered as {name}"):
            version = log_version(name, params, run, tags)
    # Also of a version that is there: a run may have been killed between the two.
    with registry(f"{name} version {version} cannot become challenger") as store:
        store.set_registered_model_alias(name, "challenger", version)
        report = describe(name, version, new=not known)
    run.set_tags({"registered": f"{name}/{report['version']}", "weights_hash": weights})
    return write_json(REPORT, report)


def weights_hash(folder: Path) -> str:
    """The first 16 hex digits of SHA-256 over the weights alone: configs name paths and dates."""
    return lineage.files_hash(sorted(folder.glob("*.safetensors")), folder)


def serving(params: Params) -> str:
    """How a version that is registered with these settings writes, as its tag says it.

    Not how much at a time: that changes with the machine.
    """
    return params.serving.model_dump_json(exclude={"batch_frames"})


def versions(name: str) -> list[ModelVersion]:
    """All registered versions with their tags, the newest first; none of an unknown model.

    Raises:
        StageError: the registry fails.
    """
    with registry(f"the versions of {name} cannot be listed") as store:
        found = store.search_model_versions(f"name = '{name}'")
    return sorted(found, key=lambda version: int(version.version), reverse=True)


def version(name: str, number: str) -> ModelVersion:
    """One registered version, with its tags and aliases.

    Raises:
        StageError: there is none, or the registry fails.
    """
    there = [str(found.version) for found in versions(name)]
    if number not in there:
        raise StageError(
            f"{name} has no version {number!r}; there are {', '.join(there) or 'none'}"
        )
    with registry(f"{name} version {number} cannot be read") as store:
        return store.get_model_version(name, number)


def made_of(params: Params) -> dict[str, str]:
    """Where the weights come from: code, data, base, settings, seeds, packages, sandbox."""
    made = {path: md5 for path, md5 in recorded().items() if path.startswith(("data", "models"))}
    return {
        **lineage.tags(params, "train"),
        **{f"dvc.{path}": md5 for path, md5 in made.items()},
        "data_report": lineage.files_hash([DATA_REPORT], DATA_REPORT.parent)
        if DATA_REPORT.is_file()
        else f"unknown: no {DATA_REPORT}",
        "seeds": json.dumps(
            {stage: lineage.seed_of(params, stage) for stage in ("prepare", "warmstart", "train")}
        ),
    }


def evaluated() -> dict[str, str]:
    """Headline figures of reports/evaluation.json as tags.

    Raises:
        StageError: the report is missing: an unmeasured model is not registered.
    """
    try:
        told = json.loads(EVALUATION.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StageError(f"register: {EVALUATION}: {error}; run the stage evaluate first") from None
    tags = {"n": told["n"], "improvement": told["improvement"]}
    for name in ("reward", "f1_greedy", "f1_sampled", "primary_objective"):
        tags[f"{name}.before"] = f"{told[name]['before']:.6f}"
        tags[f"{name}.after"] = f"{told[name]['after']:.6f}"
        tags[f"{name}.ci95"] = json.dumps([round(x, 4) for x in told[name]["ci95"]])
    return {f"evaluation.{key}": str(value) for key, value in tags.items()}


def log_version(name: str, params: Params, run: StageRun, tags: dict[str, str]) -> str:
    """Log the model to the stage's run and register it; returns the version's number."""
    import mlflow
    from mlflow.exceptions import MlflowException

    for noisy in ("mlflow.pyfunc", "mlflow.models.model", "mlflow.utils.environment"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    with mlflow.start_run(run_id=run.run_id, log_system_metrics=False):
        logged = mlflow.pyfunc.log_model(
            name=name,
            python_model=str(CODE),
            artifacts={
                "model": str(MERGED),
                "settings": str(RESOLVED),
                "trained": str(trained.write(params)),
            },
            code_paths=list(PACKAGES),
            input_example=EXAMPLE,
            pip_requirements="constraints.txt",
        )
    # MLflow has tried the example, and holds on to the model that it loaded for it: without it,
    # the environment's server that this model started ends.
    mlflow.models.model.__mlflow_model__ = None
    gc.collect()
    try:
        run.client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    # The tags come with the version, so that none exists without its lineage.
    made = run.client.create_model_version(
        name,
        source=logged.model_uri,
        run_id=run.run_id,
        tags={key: value[:5000] for key, value in tags.items()},
        model_id=logged.model_id,
    )
    return str(made.version)


def describe(name: str, version: str, *, new: bool) -> dict[str, Any]:
    """What the summary says of a version; its aliases are read back from the registry."""
    store = tracking.client(tracking.tracking_uri())
    aliases = store.get_model_version(name, version).aliases
    return {"name": name, "version": version, "new": new, "aliases": sorted(aliases)}


@contextmanager
def registry(doing: str) -> Iterator[MlflowClient]:
    """The client of the registry; what it cannot do is one error that says what and where.

    Args:
        doing: what is being done, for the message.

    Raises:
        StageError: the server is gone, the database is locked or broken, or what was asked for
            is missing.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield tracking.client(tracking.tracking_uri())
    except (MlflowException, SQLAlchemyError) as error:
        raise StageError(
            f"{doing}: the MLflow registry at {tracking.shown_uri()} failed: "
            f"{tracking.first_line(error)}. Nothing was half done: when it answers again, run the "
            "same command again"
        ) from None  # as in `tracking.answering`


def registered(name: str) -> RegisteredModel | None:
    """The model itself, with its aliases and tags; None where nothing was registered yet.

    Raises:
        StageError: the registry fails.
    """
    with registry(f"{name} cannot be looked up") as store:
        return next(iter(store.search_registered_models(f"name = '{name}'")), None)


def by_alias(name: str, alias: str) -> ModelVersion | None:
    """The version that an alias names, with its tags and aliases; None where none does.

    Raises:
        StageError: the registry fails.
    """
    from mlflow.exceptions import MlflowException

    with registry(f"{name}@{alias}") as store:
        try:
            return store.get_model_version_by_alias(name, alias)
        except MlflowException as error:
            # No such alias, no such model.
            if error.error_code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"):
                return None
            raise


def champion(name: str) -> ModelVersion | None:
    """The version that serves; None where there never was one.

    Raises:
        StageError: the registry fails, or the version that was champion is deleted.
    """
    found = by_alias(name, "champion")
    model = registered(name)
    if found is not None or model is None:
        return found
    last = model.tags.get(LAST_CHAMPION)
    there = [str(version.version) for version in versions(name)]
    if last is None or last in there:  # it was decided and never crowned: it never served
        return None
    raise StageError(
        f"the champion of {name} was version {last}, which is no longer in the registry; name "
        "another with `python -m flows.pipeline rollback --to VERSION` "
        f"(there are {', '.join(there) or 'none'})"
    )


def download(version: ModelVersion) -> Path:
    """The folder of a version's merged Hugging Face weights, on this machine.

    A local store's own folder: read it, never write there. From elsewhere it is fetched once.

    Raises:
        StageError: the artifact is gone, or its weights are not those that were registered.
    """
    folder = artifact(version) / ARTIFACT
    found = weights_hash(folder) if any(folder.glob("*.safetensors")) else "no weights at all"
    wanted = version.tags.get("weights_hash", found)
    if found != wanted:
        raise StageError(
            f"{named(version)}: {folder} holds other weights ({found}) than were registered "
            f"({wanted}); restore the artifact, or delete the version"
        )
    return folder


def artifact(version: ModelVersion) -> Path:
    """The folder of a version's whole artifact: weights, settings, code.

    Raises:
        StageError: it is gone.
    """
    from mlflow.artifacts import download_artifacts

    uri = tracking.tracking_uri()
    kept = FETCHED / "-".join(
        [version.name, str(version.version), version.tags.get("weights_hash", "")]
    )
    with registry(f"{named(version)}: its artifact cannot be read"):
        try:
            if uri.startswith("sqlite:"):
                return Path(download_artifacts(version.source))
            if not kept.is_dir():
                with replacing(kept) as temporary:
                    download_artifacts(version.source, dst_path=str(temporary))
        except OSError as error:
            raise StageError(f"{named(version)}: its artifact cannot be read: {error}") from error
    return kept


def settings(version: ModelVersion) -> Params:
    """The settings that a version was registered with, as this code reads them.

    Raises:
        StageError: the artifact is gone.
        ConfigError: they do not fit this version of the code.
    """
    return read_resolved(artifact(version) / "artifacts" / RESOLVED.name)


def trained_on(version: ModelVersion) -> Path | None:
    """The list of questions that a version was trained on (`tasks/trained.py`), if it has one.

    Raises:
        StageError: the artifact is gone.
    """
    path = artifact(version) / "artifacts" / trained.NAME
    return path if path.is_file() else None


def named(version: ModelVersion) -> str:
    """`rlm version 3`."""
    return f"{version.name} version {version.version}"
