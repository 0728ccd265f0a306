"""Efficiency: a correct answer without unnecessary turns and sub-calls, or tokens."""

from __future__ import annotations

from rewards.process import gold_sources
from rewards.settings import RewardSettings
from rewards.spans import Evidence


def par(evidence: Evidence, settings: RewardSettings) -> int:
    """Turns and sub-calls that are free: base + per paper x (gold papers + 1)."""
    return settings.par_base + settings.par_per_paper * (len(gold_sources(evidence)) + 1)


def efficiency(
    primary: float, evidence: Evidence, turns: int, sub_calls: int, settings: RewardSettings
) -> float:
    """Primary x clip((limit - used) / (limit - par), 0, 1); used = turns + sub-calls.

    Par grows with the number of gold papers: a wide question needs more children.
    """
    return primary * thrift(turns + sub_calls, par(evidence, settings), settings)


def thrift(used: int, at_par: float, settings: RewardSettings) -> float:
    """clip((limit - used) / (limit - par), 0, 1); limit = factor x par."""
    limit = settings.limit_factor * at_par
    # Compare before dividing: a count may be too large for a float.
    return 0.0 if used >= limit else min(1.0, (limit - used) / (limit - at_par))
