"""The benchmark with attackers runs, measures both phases and writes its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_a_phase_with_attackers_is_measured_beside_one_without(tmp_path: Path) -> None:
    written = tmp_path / "figures.json"
    options = ["--seconds", "0.4", "--honest", "2", "--attackers", "1", "--only", "slots", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.hostile", *options, str(written)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr  # promises depend on the machine
    data = json.loads(written.read_text())
    assert [phase["attackers"] for phase in data["phases"]] == ["none", "slots", "none"]
    for phase in data["phases"]:
        assert phase["lived"]
        assert phase["before_mb"] > 50
        assert phase["cpu_s"] > 0
    assert "the server lives | held" in done.stdout
    assert "| slots |" in done.stdout
