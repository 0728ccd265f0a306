"""One memory budget for all REPLs: who is ended, and who never is."""

import os

import pytest

from env.server.sandbox.memory import Holding, Ledger
from env.server.sandbox.usage import MemoryUsage, added, private, usage


class World:
    """A ledger and the names of the workers that it ended."""

    def __init__(self, budget: int, most: int | None = None) -> None:
        self.ledger = Ledger(budget, most)
        self.ended: list[str] = []
        self.holdings: dict[str, Holding] = {}

    def holds(self, session: str, worker: str, size: int) -> None:
        name = f"{session}{worker}"
        if name not in self.holdings:
            self.holdings[name] = Holding(session, lambda _: self.ended.append(name))
        self.ledger.note(self.holdings[name], size)


def test_the_worker_farthest_beyond_its_share_is_ended() -> None:
    world = World(100)
    world.holds("a", "1", 30)
    world.holds("b", "1", 40)
    world.holds("b", "2", 31)  # shares: 50 for a's, 25 for each of b's
    assert (world.ended, world.ledger.total) == (["b1"], 61)


def test_many_small_workers_of_one_session_do_not_end_a_neighbours_larger_one() -> None:
    world = World(1000)
    world.holds("honest", "root", 90)
    for n in range(32):
        world.holds("greedy", str(n), 40)
    assert world.ended
    assert all(name.startswith("greedy") for name in world.ended)
    assert world.ledger.total <= 1000


def test_of_too_many_workers_the_largest_session_loses_its_largest() -> None:
    world = World(1000, most=12)
    for n in range(10):
        world.holds("greedy", str(n), n)
    for n in range(6):
        world.holds("honest", str(n), 90)
    assert world.ended == ["greedy9", "greedy8", "greedy7", "greedy6"]


def test_what_an_ended_worker_reports_late_counts_no_more() -> None:
    world = World(100)
    world.holds("a", "1", 90)
    world.holds("b", "1", 20)
    world.holds("a", "1", 95)
    assert (world.ended, world.ledger.total) == (["a1"], 20)


def test_a_dropped_worker_gives_its_memory_back() -> None:
    world = World(100)
    world.holds("a", "1", 60)
    world.ledger.drop(world.holdings["a1"])
    world.ledger.drop(world.holdings["a1"])
    assert world.ledger.total == 0
    world.holds("b", "1", 60)
    assert world.ended == []


def test_a_process_that_is_gone_holds_an_unknown_amount() -> None:
    assert usage(2**22 + 1) is None
    assert usage(2) is None  # a thread of the kernel has no pages, like a dead process
    assert private(2**22 + 1) is None
    own = usage(os.getpid())
    assert own.resident > 1 << 20
    assert own.faulted > 1 << 20


PAGES = [
    (100, 0, 40, 0),
    (130, 30, 40, 30),  # new pages
    (100, 20, 40, 20),  # pages that it copied
    (130, 50, 40, 50),
    (100, 900, 40, 60),  # no more than it shared: the rest were taken and given back
    (80, 0, 40, 0),
    (130, 90, None, 30),
]


@pytest.mark.parametrize(("resident", "faulted", "own", "expected"), PAGES)
def test_new_and_copied_pages_are_its_own(resident, faulted, own, expected):
    assert added(MemoryUsage(100, 1000), MemoryUsage(resident, 1000 + faulted), own) == expected
