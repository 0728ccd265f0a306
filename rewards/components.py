"""Process quality, format compliance and efficiency: one rule for every world.

A world decides how the work of an episode is measured (`env.server.scoring.MEASURES`):

| measure | gold, and all else | used | par |
|---|---|---|---|
| `by_papers` | papers that were read | turns and sub-calls | of the number of gold papers |
| `by_sentences` | sentences that were shown | tokens | of the number of candidates |
"""

from collections.abc import Collection
from dataclasses import dataclass

from rewards.settings import RewardSettings
from rewards.spans import Evidence, gold_sources

GATE_FLOOR = 0.4
"""Part of process and format that a wrong answer earns, too, so that a start has a signal."""
LIMIT_FACTOR = 3.0
"""limit = factor x par; what costs more earns no efficiency."""
_PER_PAPER = 3
"""Turns and sub-calls that an expert spends on a paper: a child, and its turns."""
_TOKENS_OF_CODE = 92
"""Tokens of the expert's two turns, and of what the first one prints."""
_TOKENS_OF_CANDIDATE = 10.4
"""Tokens of a candidate's reader, with the prompt and the reply, if it reads four at a call."""


@dataclass(frozen=True)
class Work:
    """What an episode found and what that cost, in the units of its world."""

    gold: float
    """Share of gold that was found."""
    others: float
    """Share of all else that was looked at."""
    used: int
    par: float
    """What an expert uses."""
    floor: float
    """Part of process quality that a wrong answer earns."""


def by_papers(
    paper_ids: Collection[str],
    evidence: Evidence,
    papers_read: Collection[str],
    used: int,
    settings: RewardSettings,
) -> Work:
    """Work where any code can quote the evidence.

    If every paper is gold, handing over all of them proves nothing, so a wrong answer earns none.

    Args:
        paper_ids: ids of all papers of the problem.
        evidence: the problem's gold.
        papers_read: papers with evidence of `found.papers_found`, others of `papers_read`.
        used: turns and sub-calls of all frames.
        settings: `par_base`.
    """
    read = set(papers_read)
    sources = gold_sources(evidence)
    found = sum(1 for source in sources if source & read) / max(1, len(sources))
    others = set(paper_ids) - {paper_id for source in sources for paper_id in source}
    waste = len(read & others) / len(others) if others else 0.0
    par = par_of_papers(len(sources), settings)
    return Work(found, waste, used, par, GATE_FLOOR if others else 0.0)


def by_sentences(gold: float, others: float, candidates: int, tokens: int) -> Work:
    """Work where only a reader can choose among candidates.

    Code finds the candidates: showing them proves nothing without an answer.

    Args:
        gold: share of the sentences with evidence that a frame was shown.
        others: share of all other sentences but the candidates that a frame was shown.
        candidates: sentences among which only a reader can choose.
        tokens: tokens of all frames beyond the root's first messages.
    """
    return Work(gold, others, tokens, par_of_candidates(candidates), floor=0.0)


def par_of_papers(gold_papers: int, settings: RewardSettings) -> int:
    """Turns and sub-calls that are free: base + 3 x (gold papers + 1).

    A wide question needs more children.
    """
    return settings.par_base + _PER_PAPER * (gold_papers + 1)


def par_of_candidates(candidates: int) -> float:
    """Tokens that are free: those of the expert on a problem with so many candidates."""
    return _TOKENS_OF_CODE + _TOKENS_OF_CANDIDATE * candidates


def process_quality(work: Work, turns: int, turns_with_error: int, gate: float) -> float:
    """max(0, gold - others) x share of turns without error x (floor + (1 - floor) G), in [0, 1].

    Args:
        work: what was found.
        turns: turns of all frames.
        turns_with_error: turns that failed, as the server itself saw.
        gate: G in [0, 1].
    """
    if turns <= 0:
        return 0.0
    clean = 1.0 - min(turns, max(0, turns_with_error)) / turns
    return max(0.0, work.gold - work.others) * (clean * _gated(work.floor, gate))


def format_compliance(turns: int, turns_with_one_block: int, gate: float) -> float:
    """Share of turns in the format that their frame requires x (floor + (1 - floor) G)."""
    if turns <= 0:
        return 0.0
    return min(turns, max(0, turns_with_one_block)) / turns * _gated(GATE_FLOOR, gate)


def efficiency(primary: float, work: Work) -> float:
    """Primary x clip((limit - used) / (limit - par), 0, 1); limit = factor x par."""
    limit = LIMIT_FACTOR * work.par
    # Compare before dividing: a count may be too large for a float.
    late = work.used >= limit
    return primary * (0.0 if late else min(1.0, (limit - work.used) / (limit - work.par)))


def _gated(floor: float, gate: float) -> float:
    return floor + (1.0 - floor) * gate
