"""An attack of the benchmark is played, beside neighbours that are served."""

from __future__ import annotations

import pytest

from benchmarks import hostile


@pytest.mark.parametrize(("answer_bytes", "held"), [(65_536, True), (10, False)])
def test_an_attack_is_played_beside_neighbours(
    answer_bytes: int,
    held: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(hostile, "ANSWER_BYTES", answer_bytes)
    monkeypatch.setattr(hostile, "WAIT_S", 60.0)  # the machine may be busy
    assert hostile.play(hostile.ATTACKS[0], hostile.WAYS["module"]) == held
    cells = capsys.readouterr().out.split(" | ")
    assert "answers" in cells[2]
    assert int(cells[5]) > 3
    assert cells[6] == "{}"
