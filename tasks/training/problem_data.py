"""Problems of the stage `train`: trained on, or held out for evaluations."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from agent.evaluation.held_out import choose_held_out
from agent.rollouts.specs import EpisodeSpec, read_specs
from tasks.errors import StageError

if TYPE_CHECKING:
    from agent.settings import SftSettings, TrainSettings
    from tasks.config.params import Params

DATA = Path("data/problems/train.parquet")
HELD_OUT = Path("data/problems/validation.parquet")


def demonstrated(params: Params) -> SftSettings | None:
    """What chose the demonstrations of the base; None if it's another kind of base."""
    return params.warmstart.sft if params.warmstart.kind == "sft" else None


def draw_shown(ids: Iterable[str], level: str, sft: SftSettings, levels: int) -> list[str]:
    """Ids of the problems that the demonstrations show, of all of a level of so many."""
    mixed = sorted(ids)
    Random(f"{sft.seed}/{level}").shuffle(mixed)
    return mixed[: max(1, sft.problems // levels)]


def read_problems(
    path: Path, settings: TrainSettings, sft: SftSettings | None = None
) -> dict[str, list[EpisodeSpec]]:
    """Training problems by level, in the order of the data, without gold.

    A base has learnt the answers to the problems that it was shown, so a group of their episodes
    rarely has a spread. They're left out, unless fewer than `problems_per_step` would be left.

    Args:
        path: Parquet file.
        settings: the levels that are needed, and the size of a step.
        sft: what chose the demonstrations; None without any.

    Raises:
        SettingsError: the data is missing.
        StageError: a level has no problems.
    """
    problems: dict[str, list[EpisodeSpec]] = {}
    for spec in sorted(read_specs(path), key=lambda spec: spec.difficulty):
        problems.setdefault(spec.difficulty, []).append(spec)
    levels = settings.curriculum.levels
    if missing := [level for level in levels if level not in problems]:
        raise StageError(
            f"{path} has no problem of difficulty {', '.join(missing)}. Change "
            "train.curriculum.levels or run the stage prepare again."
        )
    for level in levels:
        ids = [spec.problem_id for spec in problems[level]]
        shown = set(draw_shown(ids, level, sft, len(levels)) if sft else ())
        unseen = [spec for spec in problems[level] if spec.problem_id not in shown]
        if len(unseen) >= settings.problems_per_step:
            problems[level] = unseen
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
