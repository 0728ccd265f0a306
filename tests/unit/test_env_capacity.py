"""Sessions that fit: the smallest of setting, descriptors and memory decides."""

import pytest

from env.server.capacity import sessions_that_fit


@pytest.mark.parametrize(
    ("setting", "descriptors", "budget_mb", "episode_mb", "count", "reason"),
    [
        (256, 20_000, None, None, 256, "env.max_sessions"),
        (256, -1, None, None, 256, "env.max_sessions"),  # unlimited
        (256, 1024, None, None, 100, "its hard limit of 1024 open files"),
        (80, 1024, None, None, 80, "env.max_sessions"),
        (256, 20_000, 1000.0, 35.0, 28, "its budget of 1000 MB for REPLs"),
        (256, 1024, 8000.0, 35.0, 100, "its hard limit of 1024 open files"),
        (256, 20_000, 1000.0, None, 256, "env.max_sessions"),
        (256, 16, None, None, 1, "its hard limit of 16 open files"),
        (256, 20_000, 10.0, 35.0, 1, "its budget of 10 MB for REPLs"),
    ],
)
def test_the_smallest_limit_decides_and_is_named(
    setting: int,
    descriptors: int,
    budget_mb: float | None,
    episode_mb: float | None,
    count: int,
    reason: str,
) -> None:
    assert sessions_that_fit(setting, descriptors, budget_mb, episode_mb) == (count, reason)
