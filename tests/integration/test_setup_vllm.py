"""`make setup-vllm` where Python cannot install pip into a new environment, as on Colab."""

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


def test_the_environment_of_vllm_needs_no_ensurepip(tmp_path: Path) -> None:
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    for name, text in (("uv", UV), ("python", PYTHON)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "constraints-vllm.txt"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    (tmp_path / ".venv/.ready").touch()  # newer than its inputs
    command = ["make", "setup-vllm", f"PYTHON={programs / 'python'}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made, installed = (tmp_path / "calls").read_text().splitlines()
    assert made == "venv --quiet --python .venv/bin/python .venv-vllm"
    assert installed.endswith("--python .venv-vllm/bin/python --requirement constraints-vllm.txt")
    assert (tmp_path / ".venv-vllm/.ready").exists()
