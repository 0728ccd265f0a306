"""The code that dvc.yaml names as inputs of stages, against the code that stages run."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import grimp
import pytest
import yaml

from flows import stages
from tasks.training import fingerprint

ROOT = Path(__file__).parents[2]
PACKAGES = ("agent", "env", "rewards", "tasks")
DVC: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
IGNORED = (
    *("tasks.config", "tasks.deployment", "tasks.errors"),
    *("tasks.reporting.progress", "tasks.tracking"),
)
"""Stages import these, which cannot change results: dvc.yaml names settings as params."""
STARTED = {"tasks.deployment.environment": "env.server.app", "tasks.train": "tasks.train_rank"}
"""Main modules of processes, by the module that starts them."""


def test_nothing_is_trained_past_a_gate_that_has_refused() -> None:
    assert "reports/gate.json" in DVC["train"]["deps"]


@cache
def imports() -> grimp.ImportGraph:
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    for module in filter(lambda name: name.startswith(IGNORED), graph.modules):
        for imported in graph.find_modules_directly_imported_by(module):
            graph.remove_import(importer=module, imported=imported)
    for importer, imported in STARTED.items():
        graph.add_import(importer=importer, imported=imported)
    return graph


def unlisted(stage: str, inputs: Iterable[str]) -> set[str]:
    """Modules that a stage runs and that are neither inputs nor in a folder that is one."""
    run = {f"tasks.{stage}", *imports().find_upstream_modules(f"tasks.{stage}")}
    within = tuple(f"{name.removesuffix('.py')}/" for name in inputs)
    paths = {f"{name.replace('.', '/')}/" for name in run if not name.startswith(IGNORED)}
    return {path for path in paths if not path.startswith(within)}


@pytest.mark.parametrize("stage", stages.BY_DVC)
def test_all_code_that_a_stage_runs_is_among_its_inputs(stage: str) -> None:
    inputs = DVC[stage]["deps"]
    assert unlisted(stage, inputs) == set()
    for name in (name for name in inputs if name.startswith(PACKAGES)):
        assert unlisted(stage, [other for other in inputs if other != name]), f"{name} isn't run"


def test_checkpoints_depend_on_the_code_of_the_training() -> None:
    assert {one for one in DVC["train"]["deps"] if one.startswith(PACKAGES)} == {*fingerprint.CODE}
    ignored = (ROOT / ".dvcignore").read_text(encoding="utf-8").split()
    for folder in (ROOT / name for name in fingerprint.CODE):
        for path in (path for path in folder.rglob("*.*") if path.suffix not in (".py", ".pyc")):
            # It hashes Python files alone, so what lies beside them must change nothing.
            named = f"/{path.relative_to(ROOT).as_posix()}"
            assert named.startswith(tuple(name for name in ignored if name.startswith("/"))), named


def test_each_stage_is_a_module_and_dvc_knows_its_command() -> None:
    for name in stages.STAGES:
        assert (ROOT / f"tasks/{name}.py").is_file(), name
    assert tuple(DVC) == stages.BY_DVC
    for name, stage in DVC.items():
        assert stage["cmd"] == f"python -m flows.pipeline {name}"
