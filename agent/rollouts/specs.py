"""Specs of episodes, read from the problem files without their gold."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from env.problems.schema import CANDIDATES
from env.problems.store import read_columns

_COLUMNS = ["problem_id", "difficulty", "collection_id", "tier"]


@dataclass(frozen=True)
class EpisodeSpec:
    """An episode to play. The labels are only copied to its record."""

    problem_id: str
    seed: int = 0
    """Seed of all sampling in this episode."""
    difficulty: str = ""
    collection_id: str = ""
    tier: str | None = None
    tree_tokens: int | None = None
    """Budget of its tree in tokens; None for the environment's own."""
    candidates: int = 0
    """Sentences among which only a reader can choose; 0 where they were not counted."""


def read_specs(path: Path, *, count_candidates: bool = False) -> list[EpisodeSpec]:
    """Read an episode for each problem of a Parquet file, in file order, with seed 0.

    Raises:
        SettingsError: the file or one of its columns is missing.
    """
    rows = read_columns(path, _COLUMNS, [CANDIDATES] if count_candidates else [])
    return [
        EpisodeSpec(**row, candidates=len(json.loads(listed or "[]")))
        for row in rows
        for listed in [row.pop(CANDIDATES, None)]
    ]
