"""The notebook: jupytext writes it from its source, and every cell of it is executed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import pytest
from helpers.cards import OLD_T4
from helpers.chain_runs import copy_project
from nbclient import NotebookClient
from test_flows_pipeline import CODE, FILES, TINY

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "notebooks/train_colab.py"
NOTEBOOK = SOURCE.with_suffix(".ipynb")


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project with this environment as its own; `make` only notes its calls."""
    folder, standins = tmp_path / "project", tmp_path / "standins"
    standins.mkdir()
    copy_project(folder, [*CODE, *FILES, "pyproject.toml"])
    (folder / ".venv").symlink_to(sys.prefix)
    program(standins / "make", f'echo "$*,$UV_TORCH_BACKEND" >> {tmp_path}/made')
    monkeypatch.setenv("PATH", f"{standins}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests/helpers/unsloth_standin"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return folder


def execute(folder: Path, settings: list[str], until: str | None = None) -> str:
    """Run the cells before a heading, or all; returns what they printed.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    book: Any = nbformat.read(NOTEBOOK, as_version=4)
    (parameters,) = (c for c in book.cells if "parameters" in c.metadata.get("tags", []))
    parameters.source += f"\nPROFILE = 'quick'\nSETTINGS = {settings!r}"
    if until is not None:
        places = [n for n, cell in enumerate(book.cells) if cell.source.startswith(until)]
        del book.cells[places[0] :]
    NotebookClient(book, timeout=1200, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [out for cell in book.cells for out in cell.get("outputs", [])]
    shown = [f"<{kind}>" for out in outputs for kind in out.get("data", {})]
    return "".join(out.get("text", "") for out in outputs) + "".join(shown)


def test_the_notebook_has_the_cells_of_its_source_and_no_outputs() -> None:
    books: list[Any] = [jupytext.read(SOURCE), nbformat.read(NOTEBOOK, as_version=4)]
    source, written = ([(c.cell_type, c.source, c.metadata) for c in b.cells] for b in books)
    assert written == source, "run jupytext --update --to ipynb notebooks/train_colab.py"
    assert not any(cell.get("outputs") for cell in books[1].cells)
    nbformat.validate(books[1])


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_run_all_works_without_a_card_and_again_after_a_lost_session(project, tmp_path):
    printed = execute(project, TINY)
    assert (tmp_path / "made").read_text().startswith("setup,")
    assert "parameters on the CPU" in printed
    assert "of 10 episodes earned a reward" in printed
    assert "Improvement: " in printed
    assert printed.count("<image/png>") == 2
    assert "reward/process" in printed
    before = (project / "reports/train.parquet").stat().st_mtime
    again = execute(project, TINY, until="## 6.")
    assert "Stage 'train' didn't change, skipping" in again
    assert (project / "reports/train.parquet").stat().st_mtime == before


@pytest.mark.nightly
def test_with_a_card_unsloth_is_called_as_the_mission_says(project, tmp_path, monkeypatch):
    program(tmp_path / "standins/nvidia-smi", f"echo {OLD_T4}")
    monkeypatch.setenv("UNSLOTH_CALLS", str(tmp_path / "calls"))
    printed = execute(project, [*TINY, "warmstart.kind=none"], until="## 3.")
    assert (tmp_path / "made").read_text() == "setup-cuda,cu126\n"
    assert "Tesla T4" in printed
    assert "trainable params: " in printed
    loaded, adapted = map(json.loads, (tmp_path / "calls").read_text().splitlines())
    assert (loaded["name"], adapted["name"]) == ("from_pretrained", "get_peft_model")
    assert loaded["max_seq_length"] == 2048
    assert loaded["model_name"] == "models/base"
    assert (adapted["r"], len(adapted["target_modules"])) == (16, 7)
    assert (adapted["random_state"], adapted["use_gradient_checkpointing"]) == (42, "unsloth")
