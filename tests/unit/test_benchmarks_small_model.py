"""The comparison of the small model's arms: its settings, and the page that has its results."""

from __future__ import annotations

import pytest
from helpers.documents import ROOT

from benchmarks import small_model
from tasks.config import resolve


@pytest.mark.parametrize("arm", small_model.ARMS.values())
def test_settings_of_arms_are_valid(arm: small_model.Arm) -> None:
    resolve("smollm2", [*arm.base, *(arm.grpo or ())])


def test_the_page_of_experiments_has_the_tables_of_the_committed_results() -> None:
    rows = small_model.read_results(ROOT / "benchmarks/smollm2.jsonl.gz")
    page = (ROOT / "docs/experiments.md").read_text(encoding="utf-8")
    assert small_model.table(rows) in page
    assert small_model.differences(rows) in page
