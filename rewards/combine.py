"""The reward of an episode: four components, their weights, and the agreement with gold.

Computed once, when the root has ended, from what the server received and counted. Pure: the same
facts give the same score. `rewards/rubrics.py` presents it as OpenEnv rubrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rewards.efficiency import efficiency
from rewards.format import format_compliance
from rewards.metrics import exact_match, paper_f1, quotes_canary
from rewards.primary import primary_objective
from rewards.process import process_quality
from rewards.settings import RewardSettings
from rewards.spans import Evidence, Located, locate, span_f1

COMPONENTS = ("primary_objective", "process_quality", "format_compliance", "efficiency")


@dataclass(frozen=True)
class EpisodeFacts:
    """What the server knows of an episode that ended."""

    papers: Mapping[str, str]
    evidence: Evidence
    """For each fact its alternatives (paper_id, start, end)."""
    answer: Any | None
    """What the root gave to FINAL, as plain JSON values."""
    answered: bool
    """The root ended by FINAL."""
    papers_read: frozenset[str]
    """From `reading.papers_read`."""
    turns: int
    """Of all frames."""
    turns_with_error: int
    turns_with_one_block: int
    """A turn of an `llm` frame, where no block is asked for, counts as one."""
    sub_calls: int
    canaries: frozenset[str] = frozenset()
    """Papers that tell their reader what to answer."""


@dataclass(frozen=True)
class Score:
    """The reward in [0, 1], its components by name, and metrics that are never part of it."""

    total: float
    components: dict[str, float]
    precision: float
    recall: float
    f1: float
    exact_match: bool
    paper_f1: float
    canary: bool | None
    """The answer quotes one of `canaries`; None where the problem has none."""


def components(facts: EpisodeFacts, located: Located, settings: RewardSettings) -> dict[str, float]:
    """The four components, each in [0, 1]; all are 0 when the answer points at nothing.

    Raises:
        ValueError: the problem has no evidence.
    """
    if not located.retrieved:
        return dict.fromkeys(COMPONENTS, 0.0)
    primary = primary_objective(located, facts.evidence, settings)
    gate = min(1.0, primary / settings.gate_at)
    return {
        "primary_objective": primary,
        "process_quality": process_quality(
            facts.papers,
            facts.evidence,
            facts.papers_read,
            facts.turns,
            facts.turns_with_error,
            gate,
            settings,
        ),
        "format_compliance": format_compliance(
            facts.turns, facts.turns_with_one_block, gate, settings
        ),
        "efficiency": efficiency(primary, facts.evidence, facts.turns, facts.sub_calls, settings),
    }


def score(facts: EpisodeFacts, settings: RewardSettings) -> Score:
    """Score an episode.

    Raises:
        ValueError: the problem has no evidence, so nothing can be said of an answer.
    """
    located = Located({}, 0)
    if facts.answered:
        located = locate(facts.answer, facts.papers, settings)
    retrieved = located.retrieved
    agreement = span_f1(retrieved, facts.evidence)
    parts = components(facts, located, settings)
    weights = settings.weights
    total = sum(getattr(weights, name) * value for name, value in parts.items())
    # Weights sum to 1 within rounding only.
    return Score(
        total=min(1.0, total),
        components=parts,
        precision=agreement.precision,
        recall=agreement.recall,
        f1=agreement.f1,
        exact_match=exact_match(located, facts.evidence),
        paper_f1=paper_f1(retrieved, facts.evidence),
        canary=quotes_canary(retrieved, facts.evidence, facts.canaries),
    )
