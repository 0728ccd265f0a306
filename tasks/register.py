"""Stage `register`: register the merged model with its lineage in the MLflow registry.

The model is logged as a pyfunc from code (`mlflow/recursive_model.py`) with its Hugging Face
folder as artifact. If a version with the same weights and serving settings exists, it is reused
with its promotion decision. The version becomes `challenger`; the stage `promote` decides who is
`champion`. `tasks/registry/versions.py` reads versions.
"""

from __future__ import annotations

import gc
import json
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

from tasks import evaluate, paths
from tasks.config import RESOLVED
from tasks.errors import StageError
from tasks.io import read_report, write_json
from tasks.push import recorded
from tasks.registry import champions, trained_questions, versions
from tasks.tracking import lineage

if TYPE_CHECKING:
    from tasks.config.params import Params
    from tasks.tracking.runs import StageRun

CODE = Path("mlflow/recursive_model.py")
PACKAGES = ("agent", "env", "rewards", "tasks")
"""Packages that are stored with the model, so that it loads without this folder."""
ABOUT = (
    "Answers a question about documents with verbatim quotes and their places. `champion` serves; "
    "`challenger` is the newest version, which the stage promote compares with it."
)
"""Description of the registered model, in Markdown."""
EXAMPLE = [
    {
        "question": "How well does Jedkuf do on code?",
        "documents": [
            {"id": "a.txt", "title": "Kottod", "text": "A study of Kottod.\nJedkuf is not in it."},
            {"id": "b.txt", "title": None, "text": "Jedkuf scores 43 on Hixajag."},
        ],
        "seed": 0,
    }
]
"""Example of a request, stored with the model."""


def run(params: Params, run: StageRun) -> Path:
    """Make models/merged the challenger; returns the report's path.

    Raises:
        StageError: the merged model or its evaluation is missing, or the registry fails.
    """
    if not any(paths.MERGED.glob("*.safetensors")):
        raise StageError(f"{paths.MERGED} has no weights. Run `rlm export` first.")
    name = params.register_.model_name
    weights = versions.weights_hash(paths.MERGED)
    served = {"weights_hash": weights, versions.SERVING: versions.serving(params)}
    matches = [v for v in versions.list_versions(name) if served.items() <= v.tags.items()]
    if matches:
        version = str(matches[0].version)
    else:
        tags = {**served, **made_of(params), **evaluated(params)}
        with versions.registry(f"{paths.MERGED} cannot be registered as {name}"):
            version = log_version(name, params, run, tags)
    # Also for a known version: a run may have been killed before it set the alias.
    with versions.registry(f"{name} version {version} cannot become challenger") as store:
        store.set_registered_model_alias(name, "challenger", version)
        aliases = sorted(store.get_model_version(name, version).aliases)
    run.set_tags({"registered": f"{name}/{version}", "weights_hash": weights})
    report = {"name": name, "version": version, "new": not matches, "aliases": aliases}
    return write_json(paths.REGISTERED, report)


def made_of(params: Params) -> dict[str, str]:
    """Lineage of the weights as tags: code and data, and as JSON what else they depend on."""
    made = {path: md5 for path, md5 in recorded().items() if path.startswith(("data", "models"))}
    seeds = {stage: lineage.seed_of(params, stage) for stage in ("prepare", "warmstart", "train")}
    tags = lineage.tags(params, "train")
    rest = {**json.loads(tags["lineage"]), "dvc": made, "seeds": seeds}
    return {
        **tags,
        champions.PROFILE: params.profile,
        "lineage": json.dumps(rest),
        "data_report": lineage.files_hash([paths.PREPARED], paths.PREPARED.parent)
        if paths.PREPARED.is_file()
        else f"unknown: no {paths.PREPARED}",
    }


def evaluated(params: Params) -> dict[str, str]:
    """Headline figures of reports/evaluation.json as tags.

    Raises:
        StageError: the report is missing, invalid, or about other settings or models.
    """
    report = read_report(paths.EVALUATION, "evaluate")
    if report.get("inputs") != evaluate.inputs(params):
        raise StageError(f"{paths.EVALUATION} is of other settings or models. Run `rlm evaluate`.")
    tags = {"n": report["n"], "improvement": report["improvement"]}
    for name in ("reward", "f1_greedy", "f1_sampled", "primary_objective"):
        tags[f"{name}.before"] = f"{report[name]['before']:.6f}"
        tags[f"{name}.after"] = f"{report[name]['after']:.6f}"
        tags[f"{name}.ci95"] = json.dumps([round(x, 4) for x in report[name]["ci95"]])
    return {f"evaluation.{key}": str(value) for key, value in tags.items()}


def requirements() -> list[str]:
    """The pins of installed packages; MLflow would miss those of extras at every load."""
    pins = Path("constraints.txt").read_text(encoding="utf-8").splitlines()
    return [pin for pin in pins if any(distributions(name=pin.partition("==")[0]))]


def log_version(name: str, params: Params, run: StageRun, tags: dict[str, str]) -> str:
    """Log the model to the run of the stage and register it; returns the version number."""
    import mlflow
    from mlflow.exceptions import MlflowException

    trained = trained_questions.write(params)
    tags |= {versions.FILES: versions.files_hash(paths.MERGED, RESOLVED, trained)}
    with mlflow.start_run(run_id=run.run_id):
        logged = mlflow.pyfunc.log_model(
            name=name,
            python_model=str(CODE),
            artifacts={
                "model": str(paths.MERGED),
                "settings": str(RESOLVED),
                "trained": str(trained),
            },
            code_paths=list(PACKAGES),
            input_example=EXAMPLE,
            pip_requirements=requirements(),
        )
    # MLflow keeps the model that it loaded to try the example. Releasing it stops the server of
    # the environment that the model started.
    mlflow.models.model.__mlflow_model__ = None
    gc.collect()
    try:
        run.client.create_registered_model(name, description=ABOUT)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    # Tags are set in the same call, so that no version exists without its lineage.
    made = run.client.create_model_version(
        name,
        source=logged.model_uri,
        run_id=run.run_id,
        description=f"{tags['evaluation.improvement']} (reward of {tags['evaluation.n']} held-out "
        f"problems). Profile {params.profile}, base {params.model.source}, commit "
        f"{tags['commit'][:7]}.",
        tags={key: value[:5000] for key, value in tags.items()},
        model_id=logged.model_id,
    )
    return str(made.version)
