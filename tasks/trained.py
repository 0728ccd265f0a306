"""Which questions a model was trained on: kept with each version, so that none tests a successor.

The user's own problems change from one retraining to the next, and the hash by which groups fall
into splits may send one that has trained a champion to the test split. Of synthetic problems
nothing is kept: each retraining generates others. Neighbours: `register.py` keeps the list with
the version, `inherit.py` with the base that is made from it, `flows/retrain.py` hands it to
`prepare`, and `env/problems/splits.py` obeys it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from env.problems.splits import question_key
from tasks.config import Params
from tasks.outputs import write_json

NAME = "trained.json"
REPORT = Path("reports") / NAME
BASE = Path("models/base")
DATA = Path("data/problems/train.parquet")


def write(params: Params) -> Path:
    """Write the keys of all questions that models/merged was trained on, its base's included."""
    inherited = BASE / NAME
    keys = set(json.loads(inherited.read_text("utf-8"))) if inherited.is_file() else set[str]()
    if params.prepare.source != "synthetic":
        keys |= {
            question_key(text) for text in pd.read_parquet(DATA, columns=["question"])["question"]
        }
    return write_json(REPORT, sorted(keys))
