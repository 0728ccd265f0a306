"""Facts of a machine, from stand-ins of `nvidia-smi`; the doctor's command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.cards import H200, T4

from flows import machine
from flows.machine import GraphicsCard, read_cards

ROOT = Path(__file__).parents[2]


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a shell script in the place of nvidia-smi."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def make(script: str) -> None:
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return make


def test_cards_are_read_from_the_driver(smi) -> None:
    smi(f'test "$2" = --format=csv,noheader,nounits && echo "{T4}\n{H200}"')
    cards = (
        GraphicsCard("Tesla T4", 15360, 15095, "580.82.07", (7, 5)),
        GraphicsCard("NVIDIA H200", 143771, 143156, "580.95.05", (9, 0)),
    )
    assert read_cards() == (cards, None)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo No devices were found; exit 6", "nvidia-smi: No devices were found"),
        ("echo no driver >&2; exit 9", "nvidia-smi: no driver"),
        ("echo NVIDIA GB10, [N/A], [N/A], 580.95.05, 12.1", "nvidia-smi: NVIDIA GB10, [N/A]"),
        ("exec sleep 60", "did not answer within 0.5 s"),
    ],
)
def test_an_answer_that_cannot_be_read_is_quoted(smi, monkeypatch, script, said):
    monkeypatch.setattr(machine, "QUERY_S", 0.5 if "sleep" in script else 20.0)
    smi(script)
    cards, fault = read_cards()
    assert cards == ()
    assert said in str(fault)


def test_the_command_prints_the_report_of_this_machine(smi) -> None:
    smi(f"echo {T4}")
    code = (
        "import sys; from flows import doctor; status = doctor.main(sys.argv[1:]); "
        "assert not {'torch', 'typer', 'pydantic', 'yaml'} & set(sys.modules); sys.exit(status)"
    )
    command = [sys.executable, "-c", code, "--json"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    said = json.loads(found.stdout)
    assert said["profile"] == "t4"
    assert said["machine"]["cards"][0]["name"] == "Tesla T4"
    assert said["nano_runs"] is True
