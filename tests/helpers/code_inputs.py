"""The project's code that each DVC stage runs: rewrite the lists in dvc.yaml.

    python -m tests.helpers.code_inputs

A stage runs the modules that it imports, those that they import, and those of the processes that
it starts. A folder is named in place of its files when the stage runs all of them.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
DVC = ROOT / "dvc.yaml"
PACKAGES = ("agent", "env", "rewards", "tasks")

IGNORED = {
    "flows": "starts stages and shows how they go",
    "tasks.config": "reads settings; dvc.yaml names their values as params",
    "tasks.deployment": "decides where the environment runs",
    "tasks.errors": "decides the exit code of a failure",
    "tasks.reporting.progress": "shows progress in the terminal",
    "tasks.tracking": "records in MLflow what a stage did",
}
"""Modules and packages that stages import but that cannot change their results."""
STARTED = {
    "tasks.deployment.environment": "env.server.app",
    "env.server.sandbox.spawner": "env.server.sandbox.inside.zygote",
}
"""Main modules of processes, by the module that starts them."""
NOT_TAKEN = {
    ("env.problems.store", "env.problems.synthetic"),
    ("tasks.warmstart", "tasks.training.demonstrate"),
    ("tasks.zeroshot", "tasks.training.demonstrate"),
    ("tasks.registry.warm_start", "agent.models.base_model"),
}
"""Imports inside functions that the default run does not call, as (importer, imported).

Only a server without data files generates. In dvc.yaml, `derived` names what other models need.
"""
DATA = {"tasks.reporting.html": "tasks/reporting/templates"}
"""Files that a module reads, where they are not in a folder that a stage lists anyway."""


def is_in(module: str, names: Iterable[str]) -> bool:
    """Whether a module or a package that it is in has one of the names."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


def is_ignored(module: str) -> bool:
    """Whether a module is in `IGNORED`, by itself or with its package."""
    return is_in(module, IGNORED)


@cache
def all_imports() -> grimp.ImportGraph:
    """Graph of all imports."""
    return grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)


@cache
def imports() -> grimp.ImportGraph:
    """Graph of imports, with the processes that modules start and without ignored modules."""
    graph = deepcopy(all_imports())
    for module in filter(is_ignored, graph.modules):
        for imported in graph.find_modules_directly_imported_by(module):
            graph.remove_import(importer=module, imported=imported)
    for importer, imported in NOT_TAKEN:
        graph.remove_import(importer=importer, imported=imported)
    for importer, imported in STARTED.items():
        graph.add_import(importer=importer, imported=imported)
    return graph


def source(module: str) -> Path:
    """The file of a module of the project."""
    path = ROOT / module.replace(".", "/")
    package = path / "__init__.py"
    return package if package.is_file() else path.with_suffix(".py")


@cache
def runs_nothing(path: Path) -> bool:
    """Whether a file holds nothing but a docstring."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return not body or (len(body) == 1 and isinstance(body[0], ast.Expr))


def modules(stage: str) -> set[str]:
    """Modules that a stage runs and that can change its results, packages included."""
    reached = {f"tasks.{stage}", *imports().find_upstream_modules(f"tasks.{stage}")}
    found = {
        ".".join(parts[:count])
        for parts in (module.split(".") for module in reached if not is_ignored(module))
        for count in range(1, len(parts) + 1)
    }
    return {module for module in found if not runs_nothing(source(module))}


def inputs(stage: str) -> list[str]:
    """Paths for dvc.yaml: folders that a stage runs as a whole, else files."""
    wanted = modules(stage)
    files = {source(module) for module in wanted}
    whole = {
        folder
        for path in files
        for folder in path.relative_to(ROOT).parents[:-1]
        if len(all_files := code_files(ROOT / folder)) > 1 and all_files <= files
    }
    paths = whole | {path.relative_to(ROOT) for path in files}
    paths |= {Path(folder) for module, folder in DATA.items() if module in wanted}
    return sorted(path.as_posix() for path in paths if whole.isdisjoint(path.parents))


@cache
def code_files(folder: Path) -> set[Path]:
    """Python files of a folder that run anything."""
    return {path for path in folder.rglob("*.py") if not runs_nothing(path)}


def rewritten(text: str) -> str:
    """dvc.yaml with the lists of code as they must be; all other lines are kept."""
    lines: list[str] = []
    stage = ""
    for line in text.splitlines():
        if found := re.fullmatch(r"  (\w+):", line):
            stage = found[1]
        if not re.fullmatch(rf"      - ({'|'.join(PACKAGES)})(/[\w./]+)?", line):
            lines.append(line)
        if line == "    deps:":
            lines += [f"      - {path}" for path in inputs(stage)]
    return "\n".join(lines) + "\n"


def noted(file: Path) -> dict[str, set[str]]:
    """Modules that processes imported, by stage or, of other processes, by main module.

    Args:
        file: written by note_imports/sitecustomize.py.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for line in file.read_text(encoding="utf-8").splitlines():
        command, module = line.split("\t")
        if match := re.search(r" -m (\S+)(?: (\w+)$)?", command):
            main = f"tasks.{match[2]}" if match[1] == "flows.pipeline" else match[1]
            found[main] |= {main, module}
    return {
        main: {name for name in names if source(name).is_file() and not runs_nothing(source(name))}
        for main, names in found.items()
    }


def imported(stage: str, noted: Mapping[str, set[str]]) -> set[str]:
    """Modules that a stage's process and the server that it plays on imported."""
    server = "env.server.app"
    return noted[f"tasks.{stage}"] | (noted[server] if server in modules(stage) else set())


def unlisted(stage: str, noted: Mapping[str, set[str]]) -> set[str]:
    """Modules that a stage imported, not only by way of ignored ones, and that it does not list."""
    graph = all_imports()
    carried: set[str] = set()
    for module in filter(is_ignored, graph.modules):
        carried |= graph.find_upstream_modules(module)
    found = {module for module in imported(stage, noted) if not is_ignored(module)}
    return found - carried - modules(stage)


if __name__ == "__main__":
    DVC.write_text(rewritten(DVC.read_text(encoding="utf-8")), encoding="utf-8")
