"""Stage `plots`: the figures and the HTML report, from files of earlier stages.

It measures nothing, so it can run again at any time. In `tasks/reporting`, `figures.py` draws the
figures and `html.py` renders the page.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from tasks import paths
from tasks.config.params import Params
from tasks.io import read_report, replacing, require, write_text
from tasks.reporting import figures, html, learnt
from tasks.tracking import lineage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tasks.tracking.runs import StageRun

PAGE = Path("reports/index.html")
DPI = 120
"""A figure is some thousand pixels wide: enough for the README, few enough for git."""


def run(params: Params, run: StageRun) -> Path:
    """Draw the figures and write the page; returns the page's path.

    Raises:
        StageError: an input is missing or damaged.
    """
    train = read_train(paths.TRAIN_ROWS)
    baseline = read_report(paths.BASELINE, "gate")
    zero_shot = read_report(paths.ZERO_SHOT, "zeroshot")
    evaluation = read_report(paths.EVALUATION, "evaluate")
    require(paths.TRANSCRIPTS, "evaluate")
    transcripts = [json.loads(line) for line in paths.TRANSCRIPTS.read_text("utf-8").splitlines()]
    drawn = {
        "reward_curve": figures.reward_curve(train, baseline, zero_shot),
        "before_after": figures.before_after(evaluation),
    }
    if (figure := learnt.learnt(train)) is not None:
        drawn["learnt"] = figure
    images = {name: save(figure, name) for name, figure in drawn.items()}
    page = html.render(
        evaluation,
        transcripts,
        train=train,
        images=images,
        profile=params.profile,
        made={
            "model": params.model.source,
            "commit": lineage.commit()[:7],
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "synthetic": params.prepare.source == "synthetic",
            "verdicts": {
                "Bare model": zero_shot["advice"],
                "Gate": read_report(paths.GATE, "gate")["advice"],
            },
        },
    )
    for path in (*images.values(), write_text(PAGE, page)):
        run.log_artifact(path)
    return PAGE


def save(figure: Figure, name: str) -> Path:
    """Write reports/plots/NAME.png without a date, so that equal input gives equal bytes."""
    path = paths.PLOTS / f"{name}.png"
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=DPI, facecolor="white", metadata={"Software": None})
    return path


def read_train(path: Path) -> pd.DataFrame:
    """Table of the training with one row per step, sorted by step.

    Raises:
        StageError: the file is missing.
    """
    require(path, "train")
    return pd.read_parquet(path).sort_values("step", ignore_index=True)
