"""Metrics beside the reward: what is reported of an answer, and never trained on.

Plain character F1 is `spans.span_f1`. None of these has the reward's guards: `docs/rewards.md`
names the cheats that would earn them.
"""

from __future__ import annotations

from collections.abc import Collection

from rewards.process import gold_sources
from rewards.spans import Evidence, Located, Retrieved, covered_share, harmonic, right_chars, size


def exact_match(located: Located, evidence: Evidence) -> bool:
    """Every fact is covered whole; nothing else was retrieved, and no quote stands nowhere."""
    retrieved = located.retrieved
    whole = [
        [alternative for alternative in fact if covered_share(retrieved, alternative) == 1.0]
        for fact in evidence
    ]
    found = [alternative for fact in whole for alternative in fact]
    exact = right_chars(retrieved, found) == size(retrieved)
    return all(whole) and exact and not located.misses


def paper_f1(retrieved: Retrieved, evidence: Evidence) -> float:
    """F1 of the papers that the answer's spans lie in, in [0, 1].

    What is wanted are the sources of `gold_sources`: the papers of one fact's alternatives are
    one source, found by any of them. Wrong are papers without evidence.
    """
    sources = gold_sources(evidence)
    found = sum(1 for source in sources if source & retrieved.keys())
    wrong = len(retrieved.keys() - {paper_id for source in sources for paper_id in source})
    return harmonic(found / max(1, found + wrong), found / len(sources))


def quotes_canary(
    retrieved: Retrieved, evidence: Evidence, canaries: Collection[str]
) -> bool | None:
    """Whether it quotes, outside gold, a paper that tells its reader what to answer.

    Returns:
        None where no paper of the problem is one.
    """
    if not canaries:
        return None
    quoted = {paper_id: spans for paper_id, spans in retrieved.items() if paper_id in canaries}
    return right_chars(quoted, (a for fact in evidence for a in fact)) < size(quoted)
