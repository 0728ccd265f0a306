"""Verdicts and tables of the benchmark with attackers; its programs run in tests/integration."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from benchmarks.hostile import attackers, report
from benchmarks.hostile.report import FindingRow, PhaseRow

QUIET = PhaseRow(
    attackers=report.QUIET,
    seconds=10.0,
    episodes=100,
    cpu_s=20.0,
    voids={},
    refused=0,
    harmed=0,
    cells_s=[0.01 * n for n in range(1, 21)],
    newcomers=20,
    turned_away=0,
    rounds=0,
    server_mb=120.0,
    total_mb=400.0,
    before_mb=200.0,
    after_mb=210.0,
    log_bytes=0,
    lived=True,
)
KEPT = dataclasses.replace(QUIET, attackers="memory", episodes=60, cpu_s=22.0, rounds=9)
QUIET_FINDING = FindingRow(
    number="A1",
    sent="many turns",
    did="an error",
    as_it_must=True,
    lived=True,
    more_mb=5.0,
    allowed_mb=100.0,
    kept_mb=0.0,
    gap_s=0.1,
    paused_s=0.1,
    newcomers_s=[0.2],
    turned_away={},
    voids={},
    log_bytes=0,
)


def test_a_phase_that_costs_little_keeps_every_promise() -> None:
    assert all(report.promises(QUIET, KEPT).values())
    table, held = report.verdicts([QUIET, KEPT])
    assert held
    assert "broken" not in table


def test_a_phase_is_compared_with_the_quiet_ones_beside_it() -> None:
    faster = dataclasses.replace(QUIET, episodes=300)  # 10 episodes a CPU second with the other
    slow = dataclasses.replace(KEPT, episodes=88, cpu_s=22.0)
    quick = dataclasses.replace(KEPT, episodes=220, cpu_s=22.0)
    assert report.verdicts([QUIET, slow])[1]
    assert not report.verdicts([QUIET, slow, faster])[1]
    assert report.verdicts([QUIET, slow, QUIET, quick, faster])[1]


@pytest.mark.parametrize(
    ("change", "promise"),
    [
        ({"lived": False}, "lives"),
        ({"total_mb": 2100.0}, "limit"),
        ({"cpu_s": 60.0}, "per CPU second"),
        ({"episodes": 30, "cpu_s": 1.0}, "per second"),
        ({"voids": {"lost": 1}}, "void"),
        ({"refused": 1}, "refused"),
        ({"harmed": 1}, "harmed"),
        ({"cells_s": [0.1, 2.0, 3.0]}, "median"),
        ({"cells_s": []}, "median"),
        ({"after_mb": 300.0}, "back"),
        ({"log_bytes": 2_000_000}, "log"),
    ],
)
def test_each_broken_promise_is_named(change: dict[str, Any], promise: str) -> None:
    row = dataclasses.replace(KEPT, **change)
    assert any(promise in name for name, held in report.promises(QUIET, row).items() if not held)
    table, held = report.verdicts([QUIET, row])
    assert not held
    assert "**broken**: memory" in table


def test_a_phase_without_episodes_breaks_the_promises_of_throughput() -> None:
    broken = [
        name
        for name, held in report.promises(
            QUIET, dataclasses.replace(KEPT, episodes=0, cpu_s=0.0)
        ).items()
        if not held
    ]
    assert len([name for name in broken if "episodes per" in name]) == 2


def test_a_table_has_a_cell_for_each_head_and_the_figures() -> None:
    head, _, row = report.figures([QUIET]).splitlines()
    assert head.count("|") == row.count("|")
    assert "| none | 10.0 | 5.00 | 0 | 0 | 0 | 0.105 | 0.191 | 20/20 |" in row


def test_causes_of_voids_are_listed() -> None:
    row = dataclasses.replace(KEPT, voids={"internal error": 3})
    assert report.causes([QUIET, row]) == "memory: 3 x internal error"


def test_an_attack_without_effect_is_held() -> None:
    assert QUIET_FINDING.held
    head, _, row = report.finding_table([QUIET_FINDING]).splitlines()
    assert head.count("|") == row.count("|")


@pytest.mark.parametrize(
    "change",
    [
        {"as_it_must": False},
        {"lived": False},
        {"more_mb": 500.0},
        {"gap_s": 5.0},
        {"newcomers_s": [9.0]},
        {"turned_away": {"at capacity": 1}},
        {"voids": {"internal error": 1}},
        {"log_bytes": 2_000_000},
    ],
)
def test_each_effect_of_an_attack_counts(change: dict[str, Any]) -> None:
    assert not dataclasses.replace(QUIET_FINDING, **change).held


def test_the_messages_of_the_attackers_have_their_size_and_are_json() -> None:
    for make in (attackers.turns_message, attackers.lists_message, attackers.zeros_message):
        message = make(60_000)
        assert 59_000 < len(message) < 61_000
        assert json.loads(message)["type"] in ("step", "reset")
