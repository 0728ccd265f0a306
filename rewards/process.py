"""Process quality: the share of gold that frames found or saw, minus the share of all else."""

from __future__ import annotations

from collections.abc import Collection

from rewards.spans import Evidence

GATE_FLOOR = 0.4
"""Part of process and format that a wrong answer earns, too, so that a start has a signal."""


def gold_sources(evidence: Evidence) -> set[frozenset[str]]:
    """The sources of the evidence: for each fact, the set of papers that contain it."""
    return {frozenset(paper_id for paper_id, _, _ in fact) for fact in evidence}


def process_quality(
    paper_ids: Collection[str],
    evidence: Evidence,
    papers_read: Collection[str],
    turns: int,
    turns_with_error: int,
    gate: float,
) -> float:
    """max(0, recall of gold papers - share of the others) x share of turns without error x gate.

    Args:
        paper_ids: ids of all papers of the problem.
        evidence: the problem's gold.
        papers_read: papers with evidence of `found.papers_found`, others of `reading.papers_read`.
        turns: turns of all frames.
        turns_with_error: turns that failed, as the server itself saw.
        gate: G in [0, 1]. It scales the part above `GATE_FLOOR`. If every paper is gold,
            handing over all of them proves nothing, so G scales the whole.
    """
    read = set(papers_read)
    sources = gold_sources(evidence)
    recall = sum(1 for source in sources if source & read) / len(sources)
    others = set(paper_ids) - {paper_id for source in sources for paper_id in source}
    floor = GATE_FLOOR if others else 0.0
    waste = len(read & others) / len(others) if others else 0.0
    return max(0.0, recall - waste) * scale(turns, turns_with_error, gate, floor)


def scale(turns: int, turns_with_error: int, gate: float, floor: float) -> float:
    """Share of turns without error x (floor + (1 - floor) G), in [0, 1]."""
    if turns <= 0:
        return 0.0
    clean = 1.0 - min(turns, max(0, turns_with_error)) / turns
    return clean * (floor + (1.0 - floor) * gate)
