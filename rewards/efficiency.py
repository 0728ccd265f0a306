"""Efficiency: a correct answer without unnecessary turns and sub-calls, or tokens."""

from __future__ import annotations

from rewards.process import gold_sources
from rewards.settings import RewardSettings
from rewards.spans import Evidence

LIMIT_FACTOR = 3.0
"""limit = factor x par; what costs more earns no efficiency."""
_PER_PAPER = 3
"""Turns and sub-calls that an expert spends on a paper: a child, and its turns."""


def par(gold_papers: int, settings: RewardSettings) -> int:
    """Turns and sub-calls that are free: base + 3 x (gold papers + 1)."""
    return settings.par_base + _PER_PAPER * (gold_papers + 1)


def efficiency(
    primary: float, evidence: Evidence, turns: int, sub_calls: int, settings: RewardSettings
) -> float:
    """Primary x clip((limit - used) / (limit - par), 0, 1); used = turns + sub-calls.

    Par grows with the number of gold papers: a wide question needs more children.
    """
    at_par = par(len(gold_sources(evidence)), settings)
    return primary * thrift(turns + sub_calls, at_par)


def thrift(used: int, at_par: float) -> float:
    """clip((limit - used) / (limit - par), 0, 1); limit = factor x par."""
    limit = LIMIT_FACTOR * at_par
    # Compare before dividing: a count may be too large for a float.
    return 0.0 if used >= limit else min(1.0, (limit - used) / (limit - at_par))
