"""Artifacts that one stage writes and others read, relative to the project's folder.

Those of one module alone are named there.
"""

from pathlib import Path

PROBLEMS = Path("data/problems")
TRAIN = PROBLEMS / "train.parquet"
VALIDATION = PROBLEMS / "validation.parquet"
TEST = PROBLEMS / "test.parquet"
PREPARED = Path("data/report.json")

BASE = Path("models/base")
BARE = Path("models/.bare")
"""The model before any demonstration, from the stage `zeroshot` until `warmstart` takes it."""
TRAINED = Path("models/adapter")
"""What training leaves."""
MERGED = Path("models/merged")

GATE = Path("reports/gate.json")
BASELINE = Path("reports/baseline.json")
ZERO_SHOT = Path("reports/zeroshot.json")
TRAIN_ROWS = Path("reports/train.parquet")
"""One row for each optimizer step."""
EXPORT = Path("reports/export.json")
EVALUATION = Path("reports/evaluation.json")
METRICS = Path("reports/metrics.json")
TRANSCRIPTS = Path("reports/transcripts.jsonl")
DEPLOYMENT = Path("reports/deployment.json")
PLOTS = Path("reports/plots")
REGISTERED = Path("reports/registered.json")
PROMOTION = Path("reports/promotion.json")

RUN = Path(".run")
"""What processes of this folder leave for each other: ports, locks, logs."""


def problems_of(split: str) -> Path:
    """The problems of a split."""
    return PROBLEMS / f"{split}.parquet"
