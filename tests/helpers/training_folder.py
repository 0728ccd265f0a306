"""The folder in which a test runs the stage `train`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from env.problems.schema import to_row
from env.problems.store import ProblemStore
from tasks import train
from tasks.training import problem_data


def make_folder(
    folder: Path, patch: pytest.MonkeyPatch, base: Path, url: str, problems: ProblemStore
) -> Path:
    """Fill a folder with data and a base, and enter it; the environment is the one at `url`."""
    patch.chdir(folder)
    patch.setenv("RLM_ENV_URL", url)
    (folder / "data/problems").mkdir(parents=True)
    for split, path in (("train", problem_data.DATA), ("validation", problem_data.HELD_OUT)):
        rows = [to_row(problems.get(name)) for name in problems.ids(split)]
        pd.DataFrame(rows).to_parquet(path)
    (folder / "models").mkdir()
    (folder / train.BASE).symlink_to(base)
    return folder
