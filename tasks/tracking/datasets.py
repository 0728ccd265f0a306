"""Problems as data sets of MLflow runs, so that runs show their data.

Name, digest and size come from data/report.json; DVC keeps the rows.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tasks import paths
from tasks.io import read_json

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

CONTEXTS = {"train": "training", "validation": "validation", "test": "testing"}
"""MLflow's context of each split."""
READ = {"train": ("train",), "evaluate": ("test",), "evaluate_model": ("test",)}
"""Splits that a stage's run names as its inputs."""


def inputs(splits: tuple[str, ...] = tuple(CONTEXTS)) -> list[DatasetInput]:
    """The splits as inputs of a run; empty before `prepare` has run."""
    report = read_json(paths.PREPARED)
    return [_input(report, split) for split in splits if split in report.get("splits", ())]


def _input(report: dict, split: str) -> DatasetInput:  # type: ignore[type-arg]
    from mlflow.entities import Dataset, DatasetInput, InputTag

    figures = report["splits"][split]
    return DatasetInput(
        Dataset(
            name=f"{report['source']} {split}",
            digest=figures["content_sha256"][:12],
            source_type="local",
            source=json.dumps({"uri": str(paths.problems_of(split))}),
            profile=json.dumps({key: figures[key] for key in ("rows", "collections", "facts")}),
        ),
        [InputTag("mlflow.data.context", CONTEXTS[split])],
    )
