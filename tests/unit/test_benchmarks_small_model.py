"""The comparison of the small model's arms: its settings."""

from __future__ import annotations

import pytest

from benchmarks import small_model
from tasks.config import resolve


@pytest.mark.parametrize("arm", small_model.ARMS.values())
def test_settings_of_arms_are_valid(arm: small_model.Arm) -> None:
    resolve("smollm2", [*arm.base, *(arm.grpo or ())])
