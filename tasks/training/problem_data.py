"""Problems of the stage `train`, and those that demonstrations show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from agent.rollouts.specs import EpisodeSpec, by_difficulty, read_specs
from tasks import paths
from tasks.errors import StageError
from tasks.io import read_json

if TYPE_CHECKING:
    from agent.settings import SftSettings
    from tasks.config.params import Params


def read_problems(path: Path, levels: Sequence[str]) -> dict[str, list[EpisodeSpec]]:
    """Training problems by level, in the order of the data, without gold.

    Args:
        path: Parquet file.
        levels: levels that are needed.

    Raises:
        SettingsError: the data is missing.
        StageError: a level has no problems.
    """
    problems = by_difficulty(sorted(read_specs(path), key=lambda spec: spec.difficulty))
    if missing := [level for level in levels if level not in problems]:
        raise StageError(
            f"{path} has no problem of difficulty {', '.join(missing)}. Change "
            "train.curriculum.levels or run the stage prepare again."
        )
    return problems


def draw_shown(ids: Iterable[str], level: str, sft: SftSettings, levels: int) -> list[str]:
    """Ids of the problems that the demonstrations show, of all of a level of so many."""
    mixed = sorted(ids)
    Random(f"{sft.seed}/{level}").shuffle(mixed)
    return mixed[: max(1, sft.problems // levels)]


def unseen(problems: dict[str, list[EpisodeSpec]], params: Params) -> dict[str, list[EpisodeSpec]]:
    """The problems that no demonstration showed; all of a level with too few for a step.

    A base has learnt the answers to the problems that it was shown, so a group of their episodes
    rarely has a spread. With `auto`, a bare model that passed the stage `zeroshot` was shown none.
    """
    auto = params.warmstart.kind == "auto"
    if not params.warmstart.may_demonstrate or (auto and read_json(paths.ZERO_SHOT).get("passed")):
        return problems
    left, levels = dict(problems), params.train.curriculum.levels
    for level in problems.keys() & set(levels):
        ids = (spec.problem_id for spec in problems[level])
        shown = set(draw_shown(ids, level, params.warmstart.sft, len(levels)))
        others = [spec for spec in problems[level] if spec.problem_id not in shown]
        if len(others) >= params.train.problems_per_step:
            left[level] = others
    return left
