"""Sessions that fit: the smallest of setting, descriptors, processes and memory decides."""

import pytest

from env.server.capacity import sessions_that_fit
from env.server.sandbox.host import most_workers

LIMITS = [
    ((256, None, None, None), 256, "env.max_sessions"),  # no limit of descriptors
    ((256, 1024, None, None), 100, "its hard limit of 1024 open files"),
    ((80, 1024, None, None), 80, "env.max_sessions"),
    ((256, 20_000, 1000.0, 35.0), 28, "its budget of 1000 MB for REPLs"),
    ((256, 20_000, 1000.0, None), 256, "env.max_sessions"),
    ((256, 16, None, None), 1, "its hard limit of 16 open files"),
    ((256, None, 1024.0, 8.0), 32, "its budget of 512 MB for texts"),  # 16 MB each
    ((256, None, 1024.0, 8.0, 4_000_000), 16, "its budget of 512 MB for texts"),
    ((256, None, None, None, 0, 1024), 94, "its limit of 1024 processes"),
]


@pytest.mark.parametrize(("limits", "count", "reason"), LIMITS)
def test_the_smallest_limit_decides_and_is_named(limits, count, reason):
    assert sessions_that_fit(*limits) == (count, reason)


def test_workers_are_limited_by_descriptors_and_by_processes() -> None:
    assert most_workers(20_000, 1024) == 9 * 94
    assert most_workers(1024, 30_000) == 9 * 100


def test_workers_and_connections_of_all_sessions_have_descriptors() -> None:
    for hard in (64, 1024, 20_000):
        sessions = sessions_that_fit(1024, hard, None, None)[0]
        assert 9 * sessions <= most_workers(hard) <= hard - sessions - 16 - 8
