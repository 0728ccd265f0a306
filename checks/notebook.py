"""Write notebooks/train_colab.ipynb from its source: `python -m checks.notebook --write`.

Without `--write` it fails when the committed notebook differs from the generated one. The source
notebooks/train_colab.py has the cells in the percent format.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

SOURCE = Path("notebooks/train_colab.py")
NOTEBOOK = SOURCE.with_suffix(".ipynb")
VENV = "%%script .venv/bin/python\n"
"""First line of a cell that runs in the project's environment, and fails where its code fails."""


def notebook(source: str) -> dict[str, Any]:
    """The notebook of a source, in format 4.5 without outputs."""
    _, *parts = re.split(r"^# %%(.*)\n", source, flags=re.M)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {
        "cells": [_cell(kind.strip(" []"), text, n) for n, (kind, text) in enumerate(pairs)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cell(kind: str, text: str, number: int) -> dict[str, Any]:
    cell: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}}
    if kind == "markdown":
        lines = [re.sub("^# ?", "", line) for line in text.splitlines()]
        return {"cell_type": "markdown", **cell, "source": _lines("\n".join(lines))}
    if kind == "parameters":
        cell["metadata"] = {"tags": ["parameters"]}
    code = VENV + text if kind == "venv" else text
    return {
        "cell_type": "code",
        "execution_count": None,
        **cell,
        "outputs": [],
        "source": _lines(code),
    }


def _lines(text: str) -> list[str]:
    return text.strip().splitlines(keepends=True)


def written(source: str) -> str:
    """Text of the notebook's file."""
    return json.dumps(notebook(source), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Compare, or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the notebook")
    text = written(SOURCE.read_text(encoding="utf-8"))
    if parser.parse_args().write:
        NOTEBOOK.write_text(text, encoding="utf-8")
    elif NOTEBOOK.read_text(encoding="utf-8") != text:
        print(f"{NOTEBOOK}: not what its source says; run python -m checks.notebook --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
