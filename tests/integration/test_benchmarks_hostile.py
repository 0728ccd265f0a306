"""An attack of the benchmark is played, beside neighbours that are served."""

from __future__ import annotations

import pytest

from benchmarks import hostile


@pytest.mark.parametrize(("wait_s", "held"), [(60.0, True), (0.0, False)])
def test_an_attack_is_played_beside_neighbours(
    wait_s: float,
    held: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(hostile, "WAIT_S", wait_s)  # 60, because the machine may be busy
    assert hostile.play(hostile.ATTACKS[0], hostile.WAYS["module"]) == held
    cells = capsys.readouterr().out.split(" | ")
    assert "answers" in cells[2]
    assert int(cells[5]) > 3
    assert cells[6] == "{}"
