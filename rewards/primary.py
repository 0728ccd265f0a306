"""Primary objective: character F1 of the answer's spans and the evidence, with guards."""

from rewards.settings import RewardSettings
from rewards.spans import (
    Alternative,
    Evidence,
    Located,
    covered_share,
    gold_size,
    harmonic,
    longest,
    overlap,
    right_chars,
    size,
)

OVERSHOOT_OFFSET = 1.25
"""Wrong characters up to a share of W, a third of it at a slope of 0.75, cost precision alone."""


def _accepted(located: Located, alternative: Alternative, min_cover: float) -> bool:
    """Whether one item of the answer covers enough of it; fragments do not add up."""
    paper_id, start, end = alternative
    covered = (overlap(piece, alternative) for piece in located.pieces.get(paper_id, ()))
    # The tolerance absorbs rounding: 0.8 of 15 characters must be 12.
    return max((b - a for a, b in covered), default=0) >= min_cover * (end - start) - 1e-9


def primary_objective(located: Located, evidence: Evidence, settings: RewardSettings) -> float:
    """Guarded character F1 x clip(offset - slope wrong/W, 0, 1), in [0, 1].

    Recall weighs each fact by its longest alternative and takes the best covered share among
    its accepted alternatives. Retrieved characters outside all accepted alternatives are wrong,
    and so are invented ones.

    Raises:
        ValueError: the problem has no evidence.
    """
    gold = gold_size(evidence)
    retrieved = located.retrieved
    coverage = 0.0
    accepted: list[Alternative] = []
    for fact in evidence:
        counting = [a for a in fact if _accepted(located, a, settings.min_cover)]
        if counting:
            coverage += longest(fact) * max(covered_share(retrieved, a) for a in counting)
            accepted += counting
    right = right_chars(retrieved, accepted)
    wrong = size(retrieved) - right + located.invented
    f1 = harmonic(right / max(1, right + wrong), coverage / gold)
    dilution = OVERSHOOT_OFFSET - settings.overshoot_slope * wrong / gold
    return f1 * min(1.0, max(0.0, dilution))
