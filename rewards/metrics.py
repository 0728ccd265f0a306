"""Metrics beside the reward: they are reported and never trained on.

Plain character F1 is `spans.span_f1`. None of these has the guards of the reward;
`docs/rewards.md` names the cheats that would earn them.
"""

from __future__ import annotations

from itertools import chain

from rewards.spans import (
    Evidence,
    Located,
    Retrieved,
    covered_share,
    gold_sources,
    harmonic,
    right_chars,
    size,
)


def exact_match(located: Located, evidence: Evidence) -> bool:
    """Whether every fact is covered whole, nothing else is retrieved, and every quote occurs."""
    retrieved = located.retrieved
    whole = [[a for a in fact if covered_share(retrieved, a) == 1.0] for fact in evidence]
    exact = right_chars(retrieved, chain.from_iterable(whole)) == size(retrieved)
    return all(whole) and exact and not located.misses


def paper_f1(retrieved: Retrieved, evidence: Evidence) -> float:
    """F1 of the papers that contain the answer's spans, in [0, 1].

    Recall counts `gold_sources`: the papers of one fact's alternatives are one source, and any
    of them finds it. Papers without evidence are wrong.
    """
    sources = gold_sources(evidence)
    hits = sum(1 for source in sources if source & retrieved.keys())
    wrong = len(retrieved.keys() - {paper_id for source in sources for paper_id in source})
    return harmonic(hits / max(1, hits + wrong), hits / len(sources))
