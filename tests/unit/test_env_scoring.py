"""Turns for scoring: one at a time, the smallest and the oldest in turn."""

import threading
import time
from contextlib import suppress

from env.server.scoring import ScoringTurns


def test_one_episode_is_scored_at_a_time_and_the_smallest_and_the_oldest_take_turns() -> None:
    turns, order, inside = ScoringTurns(), [], threading.Lock()

    def score(size: int) -> None:
        with turns.turn(size):
            assert inside.acquire(blocking=False)
            order.append(size)
            inside.release()

    threads = [threading.Thread(target=score, args=(size,)) for size in (20, 30, 1, 25, 2)]
    with turns.turn(0):
        for number, thread in enumerate(threads, 1):
            thread.start()
            while len(turns._waiting) < number:
                time.sleep(0.001)
        assert order == []
    for thread in threads:
        thread.join()
    assert order == [20, 1, 30, 2, 25]


def test_an_episode_that_cannot_be_scored_gives_its_turn_back() -> None:
    turns = ScoringTurns()
    for _ in range(2):
        with suppress(ValueError), turns.turn(1):
            raise ValueError
