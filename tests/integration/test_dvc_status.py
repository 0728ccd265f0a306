"""DVC itself on a copy of the code: what a stage that fails leaves of its outputs."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from dvc.exceptions import ReproductionError
from dvc.repo import Repo
from helpers import code_inputs
from helpers.code_inputs import PACKAGES, ROOT

from tasks import config
from tasks.config.derived import derive
from tasks.config.params import Params

DVC = yaml.safe_load(code_inputs.DVC.read_text(encoding="utf-8"))["stages"]


def test_a_refused_setting_costs_no_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a copy of the code in which every stage is up to date, though none ran."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    (tmp_path / ".dvc").mkdir()
    for name in (*PACKAGES, ".dvc/config", ".dvcignore", "dvc.yaml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    config.write_resolved(Params())
    derived = derive(Params())
    for stage in DVC.values():
        for out in (*stage.get("outs", []), *stage.get("metrics", []), *stage.get("plots", [])):
            name = next(iter(out)) if isinstance(out, dict) else out
            place = Path(derived.get(name.strip("${}").removeprefix("derived."), name))
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(name)
    settings = Path(config.RESOLVED)
    with Repo(".") as repo:
        repo.commit(force=True)
        assert repo.status() == {}
        settings.write_text(settings.read_text().replace("source: synthetic", "source: nowhere"))
        with pytest.raises(ReproductionError):
            repo.reproduce(["prepare"])
    assert Path("data/problems").read_text() == "data/problems"
