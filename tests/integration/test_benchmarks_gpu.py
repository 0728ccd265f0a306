"""The benchmark of a graphics card, all parts on a tiny model on the CPU."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("bitsandbytes", reason="bitsandbytes is missing: make setup")

pytestmark = [
    pytest.mark.usefixtures("trainer_imported"),
    pytest.mark.xdist_group("transformers"),  # so that one process imports it
]

Figures = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Figures, str]:
    """Figures by part and case, and the table that was printed."""
    from benchmarks.gpu.__main__ import main, table

    folder = tmp_path_factory.mktemp("gpu")
    main(["--tiny", "--work", str(folder / "work"), "--out", str(folder)])
    records = [json.loads(line) for line in (folder / "figures.jsonl").read_text().splitlines()]
    return {(one["part"], one["case"]): one for one in records}, table(records)


def test_each_part_is_measured(measured: tuple[Figures, str]) -> None:
    from benchmarks.gpu.parts import PARTS

    figures, table = measured
    assert {part for part, case in figures if case == "whole part"} == set(PARTS)
    assert len(table.splitlines()) == len(figures) + 2


def test_the_twin_has_the_weights_of_the_4_bit_model(measured: tuple[Figures, str]) -> None:
    assert measured[0]["build", "twin"]["logit_error"] == 0.0


def test_the_loop_and_the_trainer_compute_the_log_probabilities_of_a_whole_pass(
    measured: tuple[Figures, str],
) -> None:
    figures, _ = measured
    for folder in ("nf4", "twin"):
        assert figures["decode", f"{folder}, 4 frames"]["parity_max"] < 1e-4
    for checkpointing in ("on", "off"):
        step = figures["train", f"1024 tokens, checkpointing {checkpointing}"]
        assert 0 < step["mismatch_max"] < 1e-4
        assert step["step_kl"] > 0
