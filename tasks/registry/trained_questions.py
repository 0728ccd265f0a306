"""List of the questions that a model was trained on, so that they never test a successor.

A user's own problems change between retrainings, and the hash of a collection may then put
questions of a champion's training into the test split. The list is empty for synthetic problems,
because each retraining generates others. `register` stores the list with the version and
`base_sources.py` with the base. `flows/retrain.py` passes it to `prepare`, where
`tasks/data/split.py` applies it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from tasks import paths
from tasks.config.params import Params
from tasks.data.texts import question_key
from tasks.io import write_json

NAME = "trained.json"
REPORT = Path("reports") / NAME


def write(params: Params) -> Path:
    """Write the keys of all questions that models/merged was trained on, including its base's."""
    inherited = paths.BASE / NAME
    keys = set(json.loads(inherited.read_text("utf-8"))) if inherited.is_file() else set[str]()
    if params.prepare.source != "synthetic":
        keys |= {
            question_key(text)
            for text in pd.read_parquet(paths.TRAIN, columns=["question"])["question"]
        }
    return write_json(REPORT, sorted(keys))
