"""Limits on lines, settings and words: section `tool.checks` of pyproject.toml.

Lines are radon's SLOC, without blank lines, comments and docstrings. Settings are those of
`tasks/config`, words those of the documents.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from radon.raw import analyze

from tasks.config.params import Params


def sizes(limits: Mapping[str, Any], files: list[str]) -> Iterator[tuple[str, int, int]]:
    """Name, size and limit of everything that is limited."""
    for name, folders in (("code", limits["code"]), ("tests", ["tests"])):
        modules = [f for f in files if f.endswith(".py") and f.split("/")[0] in folders]
        lines = sum(analyze(_read(file)).sloc for file in modules)
        yield f"lines of {name}", lines, limits[f"{name}_lines"]
    yield "settings", leaves(Params().model_dump()), limits["settings"]
    texts = [f for f in files if f.endswith(".md") and not f.startswith("tasks/")]  # no templates
    yield "words", sum(len(_read(text).split()) for text in texts), limits["words"]


def leaves(value: object) -> int:
    """Values in nested mappings."""
    return sum(map(leaves, value.values())) if isinstance(value, dict) else 1


def tracked() -> list[str]:
    """Files that git tracks."""
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()


def _read(name: str) -> str:
    return Path(name).read_text(encoding="utf-8")


def main() -> int:
    """Print all sizes; fail when one is beyond its limit."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    limits = tomllib.loads(_read("pyproject.toml"))["tool"]["checks"]
    beyond = False
    for name, size, limit in sizes(limits, tracked()):
        beyond |= size > limit
        print(f"{size:6} of {limit:6} {name}{'   <- too many' if size > limit else ''}")
    return int(beyond)


if __name__ == "__main__":
    sys.exit(main())
