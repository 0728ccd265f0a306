"""The code that dvc.yaml names as inputs of stages, against the code that stages run."""

from __future__ import annotations

from pathlib import Path

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


def test_the_lists_are_rewritten_after_any_change_and_the_rest_is_kept() -> None:
    text = code_inputs.DVC.read_text(encoding="utf-8")
    more = text.replace("    deps:\n", "    deps:\n      - agent\n      - env/client.py\n")
    assert more != text
    assert code_inputs.rewritten(more) == text
    assert code_inputs.rewritten(text.replace("      - tasks/train.py\n", "")) == text


@pytest.mark.parametrize("stage", ["gate", "train", "export", "evaluate"])
def test_nothing_that_makes_problems_or_teaches_is_an_input_of_what_plays(stage: str) -> None:
    run = code_inputs.modules(stage)
    others = ("agent.nano", "env.problems.papers", "env.problems.synthetic", "tasks.data")
    assert [module for module in run if code_inputs.is_in(module, others)] == []
    assert {"env.server.tree", "env.server.sandbox.inside.worker", "rewards.primary"} <= run


def test_each_exception_names_modules_that_exist() -> None:
    names = {*code_inputs.IGNORED, *code_inputs.STARTED}
    names |= {*code_inputs.STARTED.values(), *code_inputs.DATA}
    names |= {importer for importer, _ in code_inputs.NOT_TAKEN}
    assert [name for name in names if not code_inputs.source(name).is_file()] == []
    graph = code_inputs.all_imports()
    for importer, imported in code_inputs.NOT_TAKEN:
        assert imported in graph.find_modules_directly_imported_by(importer)
    listed = set().union(*map(code_inputs.modules, stages.BY_DVC))
    assert listed >= set(code_inputs.DATA)


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


def test_imports_that_a_stage_does_not_list_are_found(tmp_path: Path) -> None:
    file = tmp_path / "imports"
    file.write_text(
        "python -m flows.pipeline train\ttasks.train\n"
        "python -m flows.pipeline train\tagent.nano.model\n"
        "python -m flows.pipeline train\ttasks.tracking.runs\n"
        "python -m flows.pipeline train\tagent.no_such_module\n"
        "python -m env.server.app --until-eof --port 1\tenv.server.tree\n"
    )
    noted = code_inputs.noted(file)
    assert noted["env.server.app"] == {"env.server.app", "env.server.tree"}
    assert code_inputs.unlisted("train", noted) == {"agent.nano.model"}
    unused = code_inputs.unused("train", noted)
    assert "agent.training.trainer" in unused
    assert unused.isdisjoint({"tasks.train", "env.server.tree", "env.server.sandbox.inside.worker"})


def dvc_stages() -> dict[str, dict[str, list[str]]]:
    stages: dict[str, dict[str, list[str]]] = yaml.safe_load(code_inputs.DVC.read_text())["stages"]
    return stages
