"""Facts of a machine, from stand-ins of `nvidia-smi`; the doctor's command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.cards import HEAD, T4

from flows import doctor
from tasks import machine
from tasks.machine import GraphicsCard, read_cards

ROOT = Path(__file__).parents[2]


@pytest.fixture
def smi(tmp_path: Path):
    """Makes a program that runs a shell script in place of nvidia-smi."""

    def make(script: str) -> list[str]:
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return [str(path), *machine.QUERY[1:]]

    return make


def test_cards_are_read_from_the_driver(smi) -> None:
    script = f'test "$2" = --format=csv || exit 2\ncat <<END\n{T4}END'
    assert read_cards(smi(script)) == (
        (GraphicsCard("Tesla T4", 15360, 15095, "580.82.07", (7, 5)),),
        None,
    )


@pytest.mark.parametrize(
    "script", ["echo No devices were found", "echo No devices were found; exit 6"]
)
def test_a_driver_without_cards_is_not_a_fault(smi, script: str) -> None:
    assert read_cards(smi(script)) == ((), None)


def test_without_a_driver_there_are_no_cards(tmp_path: Path) -> None:
    assert read_cards([str(tmp_path / "nvidia-smi")]) == ((), None)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo NVIDIA-SMI has failed because ...; exit 9", "ended with 9: NVIDIA-SMI has failed"),
        (
            'echo "Field \\"compute_cap\\" is not a valid field to query."; exit 2',
            "ended with 2: F",
        ),
        (f"cat <<END\n{HEAD}NVIDIA GB10, [N/A], [N/A], 580.95.05, 12.1\nEND", "ended with 0: name"),
        (f"cat <<END\n{HEAD}Tesla T4, 15360 MiB\nEND", "ended with 0: name"),
    ],
)
def test_an_answer_that_cannot_be_read_is_quoted(smi, script: str, said: str) -> None:
    cards, fault = read_cards(smi(script))
    assert cards == ()
    assert said in str(fault)


def test_a_program_that_hangs_is_ended_with_its_children(smi, tmp_path: Path) -> None:
    started = time.monotonic()
    cards, fault = read_cards(smi(f"sleep 60 & echo $! > {tmp_path}/child; wait"), query_s=0.5)
    assert time.monotonic() - started < 10
    assert cards == ()
    assert "did not answer within 0.5 s" in str(fault)
    child = int((tmp_path / "child").read_text())
    until = time.monotonic() + 5
    while Path(f"/proc/{child}/stat").exists() and time.monotonic() < until:
        if Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{child}").exists()


def test_the_build_of_torch_is_read_without_an_import() -> None:
    import torch

    assert machine.torch_build() == (torch.__version__, torch.version.cuda)


def test_the_command_prints_the_report_of_this_machine(smi) -> None:
    path = os.pathsep.join([str(Path(smi(f"cat <<END\n{T4}END")[0]).parent), os.environ["PATH"]])
    code = (
        "import sys; from flows import doctor; status = doctor.main(sys.argv[1:]); "
        "assert not {'torch', 'typer', 'pydantic', 'yaml'} & set(sys.modules); sys.exit(status)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, "--json"],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    said = json.loads(found.stdout)
    assert said["profile"] == "t4"
    assert said["machine"]["cards"][0]["name"] == "Tesla T4"
    assert said["nano_runs"] is True


def test_a_machine_on_which_not_even_nano_runs_fails(monkeypatch, capsys) -> None:
    monkeypatch.setattr(machine, "_loads", lambda library: library != "libseccomp.so.2")
    assert doctor.main([]) == 1
    assert "      apt-get install libseccomp2\n" in capsys.readouterr().out
