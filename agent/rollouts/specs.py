"""Specs of episodes, read from the problem files without their gold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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


def read_specs(path: Path) -> list[EpisodeSpec]:
    """Read an episode for each problem of a Parquet file, in file order, with seed 0.

    Raises:
        SettingsError: the file or one of its columns is missing.
    """
    return [EpisodeSpec(**row) for row in read_columns(path, _COLUMNS)]


def by_difficulty(specs: Iterable[EpisodeSpec]) -> dict[str, list[EpisodeSpec]]:
    """Specs of each difficulty, in their order."""
    levels: dict[str, list[EpisodeSpec]] = {}
    for spec in specs:
        levels.setdefault(spec.difficulty, []).append(spec)
    return levels
