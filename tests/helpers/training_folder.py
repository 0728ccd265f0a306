"""The folder in which a test runs the stage `train`."""

from __future__ import annotations

from pathlib import Path

import pytest

from env.problems.store import ProblemStore
from helpers.problem_files import write_problems
from tasks import paths


def make_folder(
    folder: Path, patch: pytest.MonkeyPatch, base: Path, url: str, problems: ProblemStore
) -> Path:
    """Fill a folder with data and a base, and enter it; the environment is the one at `url`."""
    patch.chdir(folder)
    patch.setenv("RLM_ENV_URL", url)
    for split, path in (("train", paths.TRAIN), ("validation", paths.VALIDATION)):
        write_problems(path, map(problems.get, problems.ids(split)))
    (folder / "models").mkdir()
    (folder / paths.BASE).symlink_to(base)
    return folder
