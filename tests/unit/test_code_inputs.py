"""The code that dvc.yaml names as inputs of stages, against the code that stages run."""

from __future__ import annotations

import pathspec
import pytest
import yaml
from helpers import code_inputs
from helpers.code_inputs import PACKAGES, ROOT

from flows import stages
from tasks.training import fingerprint

FRESH = "run `python -m tests.helpers.code_inputs` to rewrite dvc.yaml"


def test_dvc_names_all_code_that_a_stage_runs_and_no_other() -> None:
    text = code_inputs.DVC.read_text(encoding="utf-8")
    assert text == code_inputs.rewritten(text), FRESH


@pytest.mark.parametrize("stage", ["gate", "train", "export", "evaluate"])
def test_nothing_that_makes_problems_or_teaches_is_an_input_of_what_plays(stage: str) -> None:
    run = code_inputs.modules(stage)
    others = ("agent.nano", "env.problems.synthetic", "tasks.data")
    assert [module for module in run if code_inputs.is_in(module, others)] == []
    assert {"env.server.tree", "env.server.sandbox.inside.worker", "rewards.primary"} <= run


def test_data_beside_the_code_is_an_input_or_needed_by_no_stage() -> None:
    ignored = pathspec.PathSpec.from_lines(
        "gitignore", (ROOT / ".dvcignore").read_text(encoding="utf-8").splitlines()
    )
    deps = [dep for stage in dvc_stages().values() for dep in stage["deps"]]
    for path in (path for name in PACKAGES for path in (ROOT / name).rglob("*.*")):
        name = path.relative_to(ROOT).as_posix()
        if not path.is_file() or name.endswith(".py") or ignored.match_file(name):
            continue
        named = any(name == dep or name.startswith(f"{dep}/") for dep in deps)
        assert named or name.startswith("tasks/deployment/"), name
        # The fingerprint of checkpoints hashes Python files alone.
        assert not any(name.startswith(f"{dep}/") for dep in dvc_stages()["train"]["deps"]), name


def test_the_fingerprint_of_checkpoints_covers_the_code_that_dvc_names() -> None:
    files = {path for path in fingerprint.code_files() if not code_inputs.runs_nothing(path)}
    assert files == {code_inputs.source(module) for module in code_inputs.modules("train")}


def dvc_stages() -> dict[str, dict[str, list[str]]]:
    stages: dict[str, dict[str, list[str]]] = yaml.safe_load(code_inputs.DVC.read_text())["stages"]
    return stages


def test_each_stage_is_a_module_and_dvc_knows_its_command() -> None:
    for name in stages.STAGES:
        assert (ROOT / f"tasks/{name}.py").is_file(), name
    described = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    assert tuple(described) == stages.BY_DVC
    for name, stage in described.items():
        assert stage["cmd"] == f"python -m flows.pipeline {name}"
