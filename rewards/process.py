"""Process quality: were the right papers, and few others, handed over or read closely?"""

from __future__ import annotations

from collections.abc import Collection

from rewards.settings import RewardSettings
from rewards.spans import Evidence


def gold_sources(evidence: Evidence) -> set[frozenset[str]]:
    """The papers that any fact needs: one set a source, its members alternatives."""
    return {frozenset(paper_id for paper_id, _, _ in fact) for fact in evidence}


def process_quality(
    paper_ids: Collection[str],
    evidence: Evidence,
    papers_read: Collection[str],
    turns: int,
    turns_with_error: int,
    gate: float,
    settings: RewardSettings,
) -> float:
    """max(0, recall of gold papers - share of the others) x share of turns without error x gate.

    Args:
        paper_ids: all papers of the problem.
        evidence: its gold.
        papers_read: from `reading.papers_read`.
        turns: of all frames.
        turns_with_error: those whose cell raised or whose block was missing or doubled.
        gate: G in [0, 1]. It scales what exceeds `gate_floor`; where every paper is gold,
            handing over all of them shows nothing, so G scales the whole.
        settings: `gate_floor`.
    """
    if turns <= 0:
        return 0.0
    read = set(papers_read)
    sources = gold_sources(evidence)
    recall = sum(1 for source in sources if source & read) / len(sources)
    others = set(paper_ids) - {paper_id for source in sources for paper_id in source}
    floor = settings.gate_floor if others else 0.0
    waste = len(read & others) / len(others) if others else 0.0
    clean = 1.0 - min(turns, max(0, turns_with_error)) / turns
    return max(0.0, recall - waste) * clean * (floor + (1.0 - floor) * gate)
