"""Stage `plots`: four figures and the HTML report, from the files that earlier stages wrote.

It measures nothing itself, so it may be run again at any time. Neighbours: `tasks/figures.py`
draws, `tasks/report.py` writes the page.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from tasks import figures, report
from tasks.config import Params
from tasks.errors import StageError
from tasks.outputs import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tasks.tracking import StageRun

TRAIN = Path("reports/train.parquet")
BASELINE = Path("reports/baseline.json")
EVALUATION = Path("reports/evaluation.json")
TRANSCRIPTS = Path("reports/transcripts.jsonl")
FOLDER = Path("plots")
PAGE = Path("reports/index.html")
TRAIN_COLUMNS = {"step", "reward", "level", *figures.COMPONENTS}


def run(params: Params, run: StageRun) -> Path:
    """Draw and write; returns the report page.

    Raises:
        StageError: an input is missing or not what its stage writes.
    """
    train = read_train(TRAIN)
    baseline = read_json(BASELINE, "gate", ("reward_mean", "components"))
    evaluation = read_json(EVALUATION, "evaluate", ("n", "reward", "before", "after"))
    transcripts = read_lines(TRANSCRIPTS, "evaluate")
    smooth = params.plots.smooth
    drawn = {
        "reward_curve": figures.reward_curve(train, baseline, smooth),
        "before_after": figures.before_after(evaluation),
        "components": figures.components(train, baseline, params.rewards.weights, smooth),
        "curriculum": figures.curriculum(train, params.train.curriculum),
    }
    paths = {name: save(figure, name, params.plots.dpi) for name, figure in drawn.items()}
    page = report.render(
        evaluation,
        transcripts,
        train=train,
        baseline=baseline,
        images=paths,
        pairs=params.plots.transcripts,
        profile=params.profile,
    )
    with replacing(PAGE) as temporary:
        temporary.write_text(page, encoding="utf-8")
    for path in (*paths.values(), PAGE):
        run.log_artifact(path)
    return PAGE


def save(figure: Figure, name: str, dpi: int) -> Path:
    """Write a figure to plots/NAME.png; without a date in it, so equal input gives equal bytes."""
    path = FOLDER / f"{name}.png"
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=dpi, facecolor="white", metadata={"Software": None})
    return path


def missing(path: Path, stage: str) -> StageError:
    """What to say when an input is not there."""
    return StageError(f"plots: {path} is missing; run the stage {stage} first")


def read_train(path: Path) -> pd.DataFrame:
    """The training's table, a row a step, by step.

    Raises:
        StageError: missing, empty or without a column.
    """
    if not path.is_file():
        raise missing(path, "train")
    train = pd.read_parquet(path)
    lost = sorted(TRAIN_COLUMNS - set(train.columns))
    if lost or train.empty:
        what = f"no column {', '.join(lost)}" if lost else "no rows"
        raise StageError(f"plots: {path} has {what}; run the stage train again")
    return train.sort_values("step", ignore_index=True)


def read_json(path: Path, stage: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """A report of an earlier stage.

    Raises:
        StageError: missing, no JSON, or without one of the keys.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise missing(path, stage) from None
    except ValueError as error:
        raise StageError(f"plots: {path}: {error}; run the stage {stage} again") from None
    lost = [key for key in keys if data.get(key) is None]
    if lost:
        raise StageError(f"plots: {path} has no {', '.join(lost)}; run the stage {stage} again")
    return dict(data)


def read_lines(path: Path, stage: str) -> list[dict[str, Any]]:
    """A JSONL file.

    Raises:
        StageError: missing or no JSON.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.strip()]
    except FileNotFoundError:
        raise missing(path, stage) from None
    except ValueError as error:
        raise StageError(f"plots: {path}: {error}; run the stage {stage} again") from None
