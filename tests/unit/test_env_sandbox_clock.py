"""A cell's own time: only what its code could have used."""

import pytest

from env.server.sandbox.clock import TICK_S, CellClock, Reading, has_schedstat

START = Reading(0.0, None, "")


def run(*ticks: tuple[float, float, float | None, str], waiting: bool = False) -> CellClock:
    """A clock after (seconds, CPU, waited, state) readings."""
    clock = CellClock()
    clock.resume(0.0, START)
    for now, cpu_s, waited_s, state in ticks:
        clock.tick(now, Reading(cpu_s, waited_s, state), 0.0, waiting)
    return clock


def test_waiting_for_a_processor_is_not_its_own_time() -> None:
    clock = run((0.1, 0.0, 5.0, "R"), (0.2, 0.01, 5.09, "R"), (0.3, 0.02, 5.18, "R"))
    assert clock.own_s == pytest.approx(0.01 + 0.01)
    assert clock.wall_s == pytest.approx(0.3)


def test_a_wait_that_goes_on_is_not_its_own_time() -> None:
    """The kernel counts a wait when it is over: here one of two seconds, in the last reading."""
    ticks = [(0.05 * n, 0.0, 0.0, "R") for n in range(1, 40)]
    clock = run(*ticks, (2.05, 0.04, 2.0, "R"), (2.1, 0.05, 2.0, "S"))
    assert clock.own_s == pytest.approx(0.04 + 0.05)


def test_a_stopped_cell_owns_nothing() -> None:
    assert run(*[(0.1 * n, 0.0, 0.0, "T") for n in range(1, 200)]).own_s == 0.0


def test_a_server_that_did_not_run_blames_nobody() -> None:
    assert run((0.1, 0.0, 0.0, "S"), (30.1, 0.0, 0.0, "S")).own_s == pytest.approx(TICK_S)


def test_cpu_counts_even_while_the_server_did_not_run() -> None:
    assert run((0.1, 0.0, 0.0, "R"), (30.1, 1.5, 0.0, "R")).own_s == pytest.approx(1.5)


def test_a_sleeping_cell_owns_its_time_and_is_found_at_the_second_tick() -> None:
    assert not run((0.1, 0.0, 0.0, "S"), waiting=True).asleep
    clock = run((0.1, 0.0, 0.0, "S"), (0.2, 0.0, 0.0, "S"), waiting=True)
    assert clock.asleep
    assert clock.own_s == pytest.approx(0.1)


def test_a_cell_that_computes_between_its_sleeps_is_not_asleep() -> None:
    assert not run(*[(0.1 * n, 0.05 * n, 0.0, "S") for n in range(1, 10)], waiting=True).asleep


def test_without_schedstat_only_cpu_counts() -> None:
    assert run((0.1, 0.0, None, "R"), (5.0, 0.3, None, "R")).own_s == pytest.approx(0.3)


def test_pauses_and_the_hosts_reading_do_not_count() -> None:
    clock = CellClock()
    clock.resume(0.0, START)
    clock.pause(0.5, cpu_s=0.0, reading_s=0.2)
    clock.resume(100.0, START)
    clock.tick(100.1, Reading(0.0, 0.0, "S"), 0.0, False)
    clock.tick(100.4, Reading(0.0, 0.0, "S"), 0.25, False)
    assert clock.wall_s == pytest.approx(0.45)
    assert clock.own_s == pytest.approx(0.05)


def test_computing_before_a_pause_is_no_lost_time() -> None:
    clock = CellClock()
    for n in range(100):
        clock.resume(float(n), Reading(0.09 * n, None, ""))
        clock.pause(n + 0.09, 0.09 * (n + 1), reading_s=0.0)
    assert clock.own_s == pytest.approx(9.0)
    assert clock.lost_s == pytest.approx(0.0)


def test_after_a_handover_all_of_the_first_tick_counts() -> None:
    clock = CellClock()
    clock.resume(0.0, Reading(1.0, 5.0, "S"))
    clock.tick(0.1, Reading(1.0, 5.02, "S"), 0.0, False)
    assert clock.own_s == pytest.approx(0.08)


def test_a_sleeper_keeps_its_slot_until_it_is_found() -> None:
    assert run((0.1, 0.05, 0.0, "R")).may_yield
    assert not run((0.1, 0.0, 0.0, "S"), waiting=True).may_yield
    assert not run((0.1, 0.0, 0.09, "R")).may_yield  # it has not come to its sleep yet
    assert run((0.1, 0.0, 0.0, "T")).may_yield


def test_this_kernel_says_how_long_a_process_waited() -> None:
    assert has_schedstat()
