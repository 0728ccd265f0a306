"""Slots for running cells: in turn, by lanes."""

from __future__ import annotations

import threading
import time

from env.server.sandbox.slots import Slots


def order(slots: Slots, waiting: list[tuple[str, bool]]) -> list[str]:
    """The order in which cells that queue in this order get the one slot."""
    got: list[str] = []

    def cell(session: str, background: bool) -> None:
        slots.enter(session, background)
        got.append(session)
        slots.leave()

    slots.enter("holder")
    threads = []
    for session, background in waiting:
        thread = threading.Thread(target=cell, args=(session, background))
        before = len(slots)
        thread.start()
        while len(slots) == before:
            time.sleep(0.001)
        threads.append(thread)
    slots.leave()
    for thread in threads:
        thread.join(timeout=5.0)
    return got


def test_sessions_take_turns_however_many_cells_one_of_them_has() -> None:
    waiting = [("a", False)] * 3 + [("b", False), ("c", False)]
    assert order(Slots(1), waiting) == ["a", "b", "c", "a", "a"]


def test_the_front_lane_comes_first_and_the_background_never_starves() -> None:
    got = order(Slots(1), [("slow", True)] * 2 + [(f"{n}", False) for n in range(8)])
    assert got[0] == "0"
    assert "slow" in got[:4]
    assert got.count("slow") == 2


def test_the_next_cell_of_a_session_that_slept_in_a_slot_waits_behind() -> None:
    slots = Slots(1)
    slots.defer("asleep")
    assert order(slots, [("asleep", False), ("b", False), ("asleep", False)]) == [
        "b",
        "asleep",
        "asleep",
    ]


def test_free_slots_need_no_waiting_and_no_more_cells_run_than_there_are() -> None:
    slots = Slots(2)
    slots.enter("a")
    slots.enter("a", background=True)
    assert not slots.wanted
    entered = threading.Event()
    threading.Thread(target=lambda: (slots.enter("b"), entered.set())).start()
    assert not entered.wait(0.05)
    assert slots.wanted
    slots.leave()
    assert entered.wait(5.0)
