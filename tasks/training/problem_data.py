"""Problems of the stage `train`: trained on, or held out for evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent.evaluation.held_out import choose_held_out
from agent.rollouts.specs import EpisodeSpec, read_specs
from tasks.errors import StageError

if TYPE_CHECKING:
    from agent.settings import TrainSettings

DATA = Path("data/problems/train.parquet")
HELD_OUT = Path("data/problems/validation.parquet")


def read_problems(path: Path, levels: Sequence[str]) -> dict[str, list[EpisodeSpec]]:
    """Training problems by level, in the order of the data, without gold.

    Args:
        path: Parquet file.
        levels: levels that are needed.

    Raises:
        SettingsError: the data is missing.
        StageError: a level has no problems.
    """
    problems: dict[str, list[EpisodeSpec]] = {}
    for spec in sorted(read_specs(path), key=lambda spec: spec.difficulty):
        problems.setdefault(spec.difficulty, []).append(spec)
    if missing := [level for level in levels if level not in problems]:
        raise StageError(
            f"{path} has no problem of difficulty {', '.join(missing)}. Change "
            "train.curriculum.levels or run the stage prepare again."
        )
    return problems


def read_held_out(
    problems: dict[str, list[EpisodeSpec]], settings: TrainSettings
) -> list[EpisodeSpec]:
    """Validation problems of the evaluations during training; empty if they are off.

    Raises:
        SettingsError: the data is missing.
        StageError: it shares papers with the training problems.
    """
    if not settings.evaluate_every:
        return []
    specs = read_specs(HELD_OUT)
    trained = {spec.collection_id for of_level in problems.values() for spec in of_level}
    if shared := sorted(trained & {spec.collection_id for spec in specs}):
        raise StageError(
            f"train.evaluate_every: {HELD_OUT} and {DATA} share {len(shared)} collections (first: "
            f"{shared[0]}). Run the stage prepare again, or set it to 0."
        )
    return choose_held_out(specs, settings.evaluate_problems, settings.seed)
