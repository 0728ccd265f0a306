"""The notebook: jupytext writes it from its source, and every cell of it is executed."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import pytest
from helpers.cards import OLD_T4
from helpers.chain_runs import copy_project
from nbclient import NotebookClient
from safetensors.torch import load_file
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
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)  # for DVC
    program(standins / "make", f'echo "$*,$UV_TORCH_BACKEND" >> {tmp_path}/made')
    monkeypatch.setenv("PATH", f"{standins}:/usr/bin:/bin")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return folder


def execute(folder: Path, settings: list[str], until: str | None = None) -> str:
    """Run the cells before a heading, or all; returns what they printed.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    book: Any = nbformat.read(NOTEBOOK, as_version=4)
    (parameters,) = (c for c in book.cells if "parameters" in c.metadata.get("tags", []))
    # The small chain's temperature is for the small chain's model.
    own = ["train.problems_per_step=4", "train.group_size=4", "generation.temperature=1.0"]
    parameters.source += f"\nSETTINGS = {settings + own!r}"
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
def test_run_all_trains_the_model_that_it_compares(project, tmp_path):
    printed = execute(project, TINY)
    assert (tmp_path / "made").read_text().startswith("setup,")
    for told in ("parameters on cpu", "answer ", "reward/process", "Improvement: "):
        assert told in printed
    assert printed.count("<image/png>") == 1
    trained = load_file(project / "models/notebook/adapter/adapter_model.safetensors")
    assert all(weight.any() for name, weight in trained.items() if "lora_B" in name)


@pytest.mark.nightly
def test_an_old_driver_gets_the_build_of_torch_that_it_can_run(project, tmp_path):
    program(tmp_path / "standins/nvidia-smi", f"echo {OLD_T4}")
    assert "Tesla T4" in execute(project, [], until="## 2.")
    assert (tmp_path / "made").read_text() == "setup-cuda,cu126\n"
