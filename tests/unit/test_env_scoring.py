"""Turns for scoring: one at a time, the smallest first."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from env.server.scoring import ScoringTurns


def test_one_episode_is_scored_at_a_time_and_the_smallest_goes_first() -> None:
    turns, order, inside = ScoringTurns(), [], threading.Lock()

    def score(size: int) -> None:
        with turns.turn(size):
            assert inside.acquire(blocking=False)
            order.append(size)
            inside.release()

    threads = [threading.Thread(target=score, args=(size,)) for size in (30, 1, 20, 2)]
    with turns.turn(0):
        for number, thread in enumerate(threads, 1):
            thread.start()
            while len(turns._waiting) < number:
                time.sleep(0.001)
        assert order == []
    for thread in threads:
        thread.join()
    assert order == [1, 2, 20, 30]


def test_an_episode_that_cannot_be_scored_gives_its_turn_back() -> None:
    turns = ScoringTurns()
    for _ in range(2):
        with suppress(ValueError), turns.turn(1):
            raise ValueError
