"""The benchmark of a graphics card, all parts on a tiny model on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("bitsandbytes", reason="bitsandbytes is missing: make setup")

pytestmark = [
    pytest.mark.usefixtures("trainer_imported"),
    pytest.mark.xdist_group("transformers"),  # so that one process imports it
]


@pytest.mark.nightly
def test_each_part_is_measured_and_its_models_agree(tmp_path: Path) -> None:
    from benchmarks.gpu.__main__ import main, table
    from benchmarks.gpu.parts import PARTS

    main(["--tiny", "--work", str(tmp_path / "work"), "--out", str(tmp_path)])
    records = [json.loads(line) for line in (tmp_path / "figures.jsonl").read_text().splitlines()]
    figures = {(one["part"], one["case"]): one for one in records}
    assert {part for part, case in figures if case == "whole part"} == set(PARTS)
    assert len(table(records).splitlines()) == len(figures) + 2
    # The twin has the weights of the 4-bit model.
    assert figures["build", "twin"]["logit_error"] == 0.0
    # The loop and the trainer compute the log-probabilities of a whole pass.
    for folder in ("nf4", "twin"):
        assert figures["decode", f"{folder}, 4 frames"]["parity_max"] < 1e-4
    for checkpointing in ("on", "off"):
        step = figures["train", f"1024 tokens, checkpointing {checkpointing}"]
        assert 0 < step["mismatch_max"] < 1e-4
        assert step["step_kl"] > 0
