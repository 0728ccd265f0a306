"""The reward of an episode: four components, their weights, and the agreement with gold.

Computed once, when the root has ended, from what the server received and counted. Pure: the same
facts give the same score. `rewards/rubrics.py` presents it as OpenEnv rubrics.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rewards.components import Work, efficiency, format_compliance, process_quality
from rewards.primary import primary_objective
from rewards.settings import RewardSettings
from rewards.spans import Evidence, Located, exact_match, locate, paper_f1, span_f1

GATE_AT = 0.3
"""Primary objective from which process and format count in full: G = primary / GATE_AT."""
COMPONENTS = ("primary_objective", "process_quality", "format_compliance", "efficiency")


@dataclass(frozen=True)
class EpisodeFacts:
    """Facts of an ended episode, as the server received and counted them."""

    papers: Mapping[str, str]
    evidence: Evidence
    """Alternatives (paper_id, start, end) of each fact."""
    answer: Any | None
    """Value that the root passed to FINAL, as plain JSON values."""
    answered: bool
    """Whether the root ended with FINAL."""
    turns: int
    """Turns of all frames."""
    turns_with_error: int
    """Turns without exactly one block or over the CPU limit: the server saw both itself."""
    turns_with_one_block: int
    """Turns of `llm` frames need no block and are included."""
    work: Work


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


def components(facts: EpisodeFacts, located: Located, settings: RewardSettings) -> dict[str, float]:
    """The four components, each in [0, 1]; all are 0 if the answer retrieves no span.

    Raises:
        ValueError: the problem has no evidence.
    """
    if not located.retrieved:
        return dict.fromkeys(COMPONENTS, 0.0)
    primary = primary_objective(located, facts.evidence, settings)
    gate = min(1.0, primary / GATE_AT)
    turns = facts.turns
    return {
        "primary_objective": primary,
        "process_quality": process_quality(facts.work, turns, facts.turns_with_error, gate),
        "format_compliance": format_compliance(turns, facts.turns_with_one_block, gate),
        "efficiency": efficiency(primary, facts.work),
    }


def score(facts: EpisodeFacts, settings: RewardSettings) -> Score:
    """Score an episode.

    Raises:
        ValueError: the problem has no evidence.
    """
    located = Located({}, 0)
    if facts.answered:
        located = locate(facts.answer, facts.papers, settings)
    retrieved = located.retrieved
    agreement = span_f1(retrieved, facts.evidence)
    parts = components(facts, located, settings)
    total = sum(getattr(settings.weights, name) * value for name, value in parts.items())
    return Score(
        total=min(1.0, total),  # the weights sum to 1 only within rounding
        components=parts,
        precision=agreement.precision,
        recall=agreement.recall,
        f1=agreement.f1,
        exact_match=exact_match(located, facts.evidence),
        paper_f1=paper_f1(retrieved, facts.evidence),
    )
