"""Collect real documents: this project's own, and those of three installed packages.

`python -m examples.documents.collect` fills data/documents/ with one folder per collection; the
questions in `questions.jsonl` quote these documents. The packages are pinned in constraints.txt,
so the texts are the same on every machine.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

TARGET = Path("data/documents")
PROJECT = ("README.md", "docs/*.md", "docs/adr/*.md")
PACKAGES = {
    "great_expectations": ".agents/skills/gx-configure-checkpoint/**/*.md",
    "mlflow": "assistant/skills/**/*.md",
    "prefect": "**/*.md",
}
"""Pattern of the files of each package."""


def files(root: Path, pattern: str) -> dict[str, Path]:
    """Non-empty files of a folder by flat name: `runner/AGENTS.md` becomes `runner-AGENTS.md`."""
    paths = sorted(path for path in root.glob(pattern) if path.stat().st_size > 0)
    return {"-".join(path.relative_to(root).parts).lstrip("."): path for path in paths}


def collect(target: Path = TARGET) -> dict[str, int]:
    """Copy the documents, one folder per collection; return the number of files of each.

    Raises:
        ModuleNotFoundError: a package is not installed.
    """
    collections = {"project": {k: v for one in PROJECT for k, v in files(Path(), one).items()}}
    for name, pattern in PACKAGES.items():
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(f"{name} is not installed. Run `make setup` first.")
        collections[name] = files(Path(spec.submodule_search_locations[0]), pattern)
    shutil.rmtree(target, ignore_errors=True)
    for name, sources in collections.items():
        (target / name).mkdir(parents=True)
        for flat, path in sources.items():
            shutil.copyfile(path, target / name / flat)
    return {name: len(sources) for name, sources in collections.items()}


if __name__ == "__main__":
    for name, count in collect().items():
        print(f"{TARGET / name}: {count} documents")
