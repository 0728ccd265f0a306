"""Format compliance: the share of turns with exactly one block."""

from __future__ import annotations

from rewards.process import GATE_FLOOR


def format_compliance(turns: int, turns_with_one_block: int, gate: float) -> float:
    """Share of turns with exactly one block x (floor + (1 - floor) G), in [0, 1].

    Args:
        turns: turns of all frames.
        turns_with_one_block: turns in the format that their frame requires.
        gate: G in [0, 1]; a well-formed wrong answer earns `GATE_FLOOR` of this component.
    """
    if turns <= 0:
        return 0.0
    share = min(turns, max(0, turns_with_one_block)) / turns
    return share * (GATE_FLOOR + (1.0 - GATE_FLOOR) * gate)
