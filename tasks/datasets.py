"""The problems as data sets of MLflow runs: name, digest and size, so that runs show their data.

Only what data/report.json says of them; the rows stay where DVC keeps them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

    from tasks.tracking import StageRun

REPORT = Path("data/report.json")
PROBLEMS = Path("data/problems")
CONTEXTS = {"train": "training", "validation": "validation", "test": "testing"}
"""What a split is for, in MLflow's words."""
READ = {"train": ("train",), "evaluate": ("test",), "measure": ("test",)}
"""The splits that a stage's run names as its inputs."""


def log(run: StageRun, splits: tuple[str, ...] = tuple(CONTEXTS)) -> None:
    """Name splits as inputs of a run; nothing happens before `prepare` has run."""
    try:
        report = json.loads(REPORT.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    run.log_inputs([_input(report, split) for split in splits if split in report["splits"]])


def _input(report: dict, split: str) -> DatasetInput:  # type: ignore[type-arg]
    from mlflow.entities import Dataset, DatasetInput, InputTag

    told = report["splits"][split]
    about = {"rows": told["rows"], "groups": told["groups"], "facts": told["facts"]}
    return DatasetInput(
        Dataset(
            name=f"{report['source']} {split}",
            digest=told["content_sha256"][:12],
            source_type="local",
            source=json.dumps({"uri": str(PROBLEMS / f"{split}.parquet")}),
            profile=json.dumps(about),
        ),
        [InputTag("mlflow.data.context", CONTEXTS[split])],
    )
