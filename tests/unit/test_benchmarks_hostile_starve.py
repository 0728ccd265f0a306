"""Starved episodes are played in batches that end, with the time left."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from benchmarks.hostile import starve


def test_batches_count_every_episode_and_say_how_long_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def play(sort: str) -> str:
        return "void: lost" if sort == "b" else "result"

    ends = asyncio.run(starve.batches(["a", "b"], play, 20, 60.0))
    assert ends == {("a", "result"): 10, ("b", "void: lost"): 10}
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        "8 of 20 episodes, 4 void",
        "16 of 20 episodes, 8 void",
        "20 of 20 episodes, 10 void",
    ]
    assert all("s left" in line for line in lines)


def test_a_batch_that_hangs_is_given_up_and_does_not_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def play(sort: str) -> str:
        await asyncio.sleep(3600.0 if sort == "b" else 0.0)
        return "result"

    ends = asyncio.run(starve.batches(["a", "b"], play, 200, 0.05))
    assert ends == {("a", "result"): 4}
    assert not starve._held("end", ends, 200, "result")
    assert "4 of 200 ended with `result`, 196 not played" in capsys.readouterr().out


def test_only_all_episodes_with_the_wanted_end_keep_the_promise() -> None:
    assert starve._held("end", Counter({("a", "result: 1"): 2}), 2, "result")
    assert not starve._held("end", Counter({("a", "void: x"): 2}), 2, "result")
