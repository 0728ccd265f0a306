"""DVC itself on a copy of the code: which stages a changed file makes dirty."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
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
PLAYING = {"audit", "zeroshot", "gate", "train", "export", "evaluate"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repo]:
    """A copy of the code in which every stage is up to date, though none ran."""
    path = tmp_path_factory.mktemp("project")
    (path / ".dvc").mkdir()
    for name in (*PACKAGES, ".dvc/config", ".dvcignore", "dvc.yaml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, path / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        config.write_resolved(Params())
        derived = derive(Params())
        for stage in DVC.values():
            for out in (*stage.get("outs", []), *stage.get("metrics", []), *stage.get("plots", [])):
                name = next(iter(out)) if isinstance(out, dict) else out
                place = Path(derived.get(name.strip("${}").removeprefix("derived."), name))
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(name)
        with Repo(".") as repo:
            repo.commit(force=True)
            yield repo


def changed(repo: Repo, files: list[Path], line: str) -> dict[str, set[str]]:
    """Changed inputs by stage while each of the files ends with one more line."""
    before = {file: file.read_bytes() for file in files}
    try:
        for file in files:
            file.write_bytes(before[file] + line.encode())
        found = repo.status()
    finally:
        for file, content in before.items():
            file.write_bytes(content)
    return {
        stage: {path for entry in entries for path in entry.get("changed deps", {})}
        for stage, entries in found.items()
    }


def test_nothing_changed_is_nothing_dirty(finished: Repo) -> None:
    assert finished.status() == {}


@pytest.mark.parametrize(
    ("name", "dirty"),
    [
        ("agent/nano/model.py", {"zeroshot", "warmstart"}),
        ("agent/training/batching.py", {"train"}),
        ("env/problems/papers/text/passages.toml", {"prepare", "validate"}),
        ("env/prompts.py", PLAYING | {"warmstart"}),
        ("env/server/sandbox/inside/worker.py", PLAYING),
        ("rewards/primary.py", PLAYING),
        ("tasks/reporting/templates/report.html", {"audit", "validate", "plots"}),
    ],
)
def test_a_changed_constant_makes_the_stages_dirty_that_run_it(
    finished: Repo, name: str, dirty: set[str]
) -> None:
    assert set(changed(finished, [Path(name)], "\nCHANGED = 1\n")) == dirty


def test_each_module_that_training_runs_is_watched_and_no_other(finished: Repo) -> None:
    stage = "train"
    run = [code_inputs.source(m).relative_to(ROOT) for m in code_inputs.modules(stage)]
    named = {dep for dep in DVC[stage]["deps"] if dep.startswith(PACKAGES)}
    assert changed(finished, run, "\nCHANGED = 1\n")[stage] == named
    every = {p.relative_to(ROOT) for name in PACKAGES for p in code_inputs.code_files(ROOT / name)}
    docstring = '\n"""One more docstring."""\n'
    assert stage not in changed(finished, sorted(every.difference(run)), docstring)


def test_a_refused_setting_costs_no_problems(
    finished: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    problems, settings = Path("data/problems"), Path(config.RESOLVED)
    before = problems.read_text(), settings.read_text()
    settings.write_text(before[1].replace("source: synthetic", "source: nowhere"))
    with pytest.raises(ReproductionError):
        finished.reproduce(["prepare"])
    assert problems.read_text() == before[0]
    settings.write_text(before[1])
