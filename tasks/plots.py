"""Stage `plots`: two figures and the HTML report, from files of earlier stages.

It measures nothing, so it can run again at any time. In `tasks/reporting`, `figures.py` draws the
figures and `html.py` renders the page.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from rewards.settings import reward_metric
from tasks.config.params import Params
from tasks.errors import StageError
from tasks.io import replacing, require, write_text
from tasks.reporting import figures, html
from tasks.tracking import lineage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tasks.tracking.runs import StageRun

TRAIN = Path("reports/train.parquet")
BASELINE = Path("reports/baseline.json")
EVALUATION = Path("reports/evaluation.json")
TRANSCRIPTS = Path("reports/transcripts.jsonl")
FOLDER = Path("reports/plots")
PAGE = Path("reports/index.html")
TRAIN_COLUMNS = {"step", "level", *map(reward_metric, ("reward", "primary_objective"))}


def run(params: Params, run: StageRun) -> Path:
    """Draw the figures and write the page; returns the page's path.

    Raises:
        StageError: an input is missing, invalid or incomplete.
    """
    train = read_train(TRAIN)
    baseline = read_json(BASELINE, "gate", ("reward_mean",))
    evaluation = read_json(EVALUATION, "evaluate", ("n", "reward", "before", "after"))
    transcripts = read_values(TRANSCRIPTS, "evaluate", lines=True)
    levels = params.train.curriculum.levels
    drawn = {
        "reward_curve": figures.reward_curve(train, baseline, params.plots.smooth, levels),
        "before_after": figures.before_after(evaluation),
    }
    paths = {name: save(figure, name, params.plots.dpi) for name, figure in drawn.items()}
    page = html.render(
        evaluation,
        transcripts,
        train=train,
        baseline=baseline,
        images=paths,
        pairs=params.plots.transcripts,
        profile=params.profile,
        made={
            "model": params.model.source,
            "commit": lineage.commit()[:7],
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "synthetic": params.prepare.source == "synthetic",
        },
    )
    for path in (*paths.values(), write_text(PAGE, page)):
        run.log_artifact(path)
    return PAGE


def save(figure: Figure, name: str, dpi: int) -> Path:
    """Write reports/plots/NAME.png without a date, so that equal input gives equal bytes."""
    path = FOLDER / f"{name}.png"
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=dpi, facecolor="white", metadata={"Software": None})
    return path


def read_train(path: Path) -> pd.DataFrame:
    """Table of the training with one row per step, sorted by step.

    Raises:
        StageError: the file is missing or empty, or lacks a column.
    """
    require(path, "train")
    train = pd.read_parquet(path)
    lost = sorted(TRAIN_COLUMNS - set(train.columns))
    if lost or train.empty:
        what = f"no column {', '.join(lost)}" if lost else "no rows"
        raise StageError(f"{path} has {what}. Run the stage train again.")
    return train.sort_values("step", ignore_index=True)


def read_json(path: Path, stage: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """Report of an earlier stage.

    Raises:
        StageError: the file is missing or not valid JSON, or lacks a key.
    """
    (data,) = read_values(path, stage, lines=False)
    if lost := [key for key in keys if data.get(key) is None]:
        raise StageError(f"{path} has no {', '.join(lost)}. Run the stage {stage} again.")
    return data


def read_values(path: Path, stage: str, *, lines: bool) -> list[dict[str, Any]]:
    """Values of a JSON file, or of a JSONL file if `lines`.

    Raises:
        StageError: the file is missing or not valid JSON.
    """
    require(path, stage)
    text = path.read_text(encoding="utf-8")
    try:
        return [json.loads(part) for part in (text.splitlines() if lines else [text])]
    except ValueError as error:
        raise StageError(f"{path} is invalid ({error}). Run the stage {stage} again.") from None
