"""Slots for running cells are shared between sessions by time."""

import threading
import time
from collections import Counter
from collections.abc import Callable

from env.server.sandbox import slots as slots_module
from env.server.sandbox.slots import Slots


class Clock:
    """Seconds that only a cell's work moves."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def run(self, slots: Slots, session: str, seconds: float) -> None:
        turn = slots.enter(session)
        self.seconds += seconds
        slots.leave(turn)


def queued(slots: Slots, work: Callable[[], None]) -> threading.Thread:
    """A thread that runs `work`, which waits for a slot."""
    before = len(slots)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while len(slots) == before:
        time.sleep(0.001)
    return thread


def order(slots: Slots, clock: Clock, waiting: list[tuple[str, float]]) -> list[str]:
    """The order in which cells get the one slot.

    Args:
        slots: one slot.
        clock: its clock.
        waiting: session of each cell that queues, and the seconds that it runs.
    """
    got: list[str] = []
    turn = slots.enter("holder")

    def cell(session: str, seconds: float) -> None:
        turn = slots.enter(session)
        got.append(session)
        clock.seconds += seconds
        slots.leave(turn)

    threads = [queued(slots, lambda of=of: cell(*of)) for of in waiting]
    slots.leave(turn)
    for thread in threads:
        thread.join(timeout=5.0)
    return got


def test_a_session_waits_until_the_others_have_had_as_much_time() -> None:
    clock = Clock()
    got = order(Slots(1, clock), clock, [("long", 1.0), ("long", 1.0)] + [("short", 0.3)] * 6)
    assert got == ["long", *["short"] * 4, "long", *["short"] * 2]


def test_a_session_saves_nothing_while_it_is_away() -> None:
    clock = Clock()
    slots = Slots(1, clock)
    order(slots, clock, [("busy", 5.0), ("busy", 5.0)])
    assert order(slots, clock, [("away", 1.0)] * 3 + [("new", 1.0)] * 3) == ["away", "new"] * 3


def test_ever_new_sessions_do_not_starve_one_that_is_ahead() -> None:
    clock = Clock()
    slots = Slots(1, clock)
    clock.run(slots, "honest", 0.3)
    waiting = [(f"new {n}", 0.03) for n in range(200)]
    assert "honest" in order(slots, clock, [*waiting[:20], ("honest", 0.3), *waiting[20:]])[:150]


def test_a_cell_gives_way_to_sessions_that_are_behind_and_to_no_others() -> None:
    clock = Clock()
    slots = Slots(1, clock)
    turn = slots.enter("long")
    clock.seconds += 0.1
    assert not slots.is_over(turn)  # nobody waits

    ran: Counter[str] = Counter()

    def short() -> None:
        for _ in range(3):
            clock.run(slots, "short", 0.3)
            ran["short"] += 1

    thread = queued(slots, short)
    clock.seconds += 0.03
    assert slots.is_over(turn)
    slots.give_way(turn)
    assert ran["short"] == 1
    assert not slots.is_over(turn)
    clock.seconds += 0.3
    assert slots.is_over(turn)
    slots.leave(turn)
    thread.join(timeout=5.0)


def test_ever_new_sessions_leave_nothing_behind() -> None:
    slots = Slots(1)
    for number in range(2 * slots_module._REMEMBERED):
        slots.leave(slots.enter(f"session {number}"))
    assert len(slots._spent) <= slots_module._REMEMBERED
    assert min(slots._spent.values()) > 0


def test_free_slots_need_no_waiting_and_no_more_cells_run_than_there_are() -> None:
    slots = Slots(2)
    first = slots.enter("a")
    slots.enter("a")
    entered = threading.Event()
    queued(slots, lambda: (slots.enter("b"), entered.set()))
    assert not entered.wait(0.05)
    slots.leave(first)
    assert entered.wait(5.0)


def test_long_cells_have_half_of_the_slots_while_short_cells_come() -> None:
    clock = Clock()
    slots = Slots(2, clock)
    first, short = slots.enter("first"), slots.enter("short")
    assert not slots.is_over(first)
    second = queued(slots, lambda: slots.enter("second", is_long=True))
    slots.leave(short)
    assert len(slots) == 1
    slots.leave(slots.enter("short"))
    clock.seconds += 1.0
    assert not slots.is_over(first)  # no short cell has come for a while
    second.join(timeout=5.0)
    assert len(slots) == 0


def test_one_of_two_long_cells_makes_room_for_a_short_one_that_is_ahead() -> None:
    clock = Clock()
    slots = Slots(2, clock)
    clock.run(slots, "short", 5.0)
    first, second = slots.enter("first"), slots.enter("second")
    clock.seconds += 1.0
    assert not slots.is_over(first)
    assert not slots.is_over(second)
    short = queued(slots, lambda: slots.leave(slots.enter("short")))
    assert slots.is_over(second)
    slots.leave(second)
    short.join(timeout=5.0)
    assert len(slots) == 0
    assert not slots.is_over(first)
