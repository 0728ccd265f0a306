"""Sessions that fit: the smallest of setting, descriptors and memory decides."""

import pytest

from env.server.capacity import sessions_that_fit
from env.server.sandbox.host import most_workers
from env.server.tree import TEXT_BYTES


@pytest.mark.parametrize(
    ("setting", "descriptors", "budget_mb", "episode_mb", "count", "reason"),
    [
        (256, None, None, None, 256, "env.max_sessions"),  # no limit of descriptors
        (256, 1024, None, None, 100, "its hard limit of 1024 open files"),
        (80, 1024, None, None, 80, "env.max_sessions"),
        (256, 20_000, 1000.0, 35.0, 28, "its budget of 1000 MB for REPLs"),
        (256, 20_000, 1000.0, None, 256, "env.max_sessions"),
        (256, 16, None, None, 1, "its hard limit of 16 open files"),
    ],
)
def test_the_smallest_limit_decides_and_is_named(
    setting, descriptors, budget_mb, episode_mb, count, reason
):
    got = sessions_that_fit(setting, descriptors, budget_mb, episode_mb)
    assert got == (count, reason)


def test_the_texts_of_all_sessions_fit_beside_their_repls() -> None:
    light = sessions_that_fit(256, None, 1024.0, 8.0)
    assert light == (32, "its budget of 512 MB for texts")
    assert light[0] * TEXT_BYTES <= 512 << 20
    own = sessions_that_fit(256, None, 1024.0, 8.0, document_chars=4_000_000)
    assert own == (16, "its budget of 512 MB for texts")


def test_workers_templates_and_threads_of_sessions_are_processes() -> None:
    assert most_workers(None, 1024) == most_workers(20_000, 1024) == 9 * 94
    assert most_workers(1024, 30_000) == most_workers(1024) == 9 * 100
    assert most_workers(None, None) is None


def test_no_more_sessions_than_processes_allow() -> None:
    count, reason = sessions_that_fit(256, None, None, None, processes=1024)
    assert count == (1024 - 64 - 16) // 10
    assert reason == "its limit of 1024 processes"


def test_workers_and_connections_of_all_sessions_have_descriptors() -> None:
    for hard in (64, 1024, 20_000):
        sessions = sessions_that_fit(1024, hard, None, None)[0]
        workers = most_workers(hard)
        assert workers is not None
        assert 9 * sessions <= workers <= hard - sessions - 16 - 8
