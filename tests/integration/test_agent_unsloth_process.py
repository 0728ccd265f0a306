"""Training with Unsloth in a process of its own: its steps, and its end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from agent.demonstrations.unsloth_process import train_with_unsloth
from agent.errors import PolicyError
from agent.settings import SftSettings, TrainSettings

PROCESS = """#!/bin/sh
echo "a banner"
echo 'sft step: [1, {"loss": 2.5}]'
for line in 1 2 3 4 5 6; do echo "line $line" >&2; done
exit 3
"""


def test_a_failed_process_is_reported_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text(PROCESS)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    noted: list[Any] = []
    with pytest.raises(PolicyError) as failure:
        train_with_unsloth(
            *(tmp_path, [], SftSettings(), TrainSettings()),
            out=tmp_path / "adapter",
            threads=1,
            on_step=lambda step, figures: noted.append((step, figures)),
        )
    assert noted == [(1, {"loss": 2.5})]
    assert str(failure.value) == (
        "Unsloth did not train the adapter (exit code 3):\nline 2\nline 3\nline 4\nline 5\nline 6"
    )
