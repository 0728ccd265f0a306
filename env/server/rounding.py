"""Figures of an episode as a client without the owner's key reads them.

Exact shares are counts of characters: a few replays that halve the answer would find the gold.
Two digits do not hide a sentence among a few. An answer that earns nothing therefore has metrics of
zero. An answer that earns something contains little besides gold. Process quality and the scores of
children tell how much gold is in what frames were shown or returned, which may be any part of the
papers. Only an answer with all evidence, and nothing else, has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from env.models import AnswerMetrics

_DIGITS = 2
_WHOLE = 1 - 1e-9
_NOTHING = {"precision": 0.0, "recall": 0.0, "f1": 0.0, "exact_match": False, "paper_f1": 0.0}


def rounded(scored: Mapping[str, Any], process_weight: float) -> dict[str, Any]:
    """The score of an episode in two digits, without what would tell the place of gold.

    Args:
        scored: `reward`, `components`, `metrics` and `frame_scores` of an observation.
        process_weight: weight of the process quality in the reward.
    """
    components, reward = dict(scored["components"]), scored["reward"]
    earns, whole = components["primary_objective"] > 0, components["primary_objective"] >= _WHOLE
    if not whole:
        reward -= process_weight * components["process_quality"]
        components["process_quality"] = 0.0
    metrics = {**dict(scored["metrics"]), **({} if earns else _NOTHING)}
    return {
        "reward": round(reward, _DIGITS),
        "components": _two_digits(components),
        "metrics": AnswerMetrics(**_two_digits(metrics)),
        "frame_scores": _two_digits(scored["frame_scores"]) if whole else {},
    }


def _two_digits(figures: Mapping[Any, Any]) -> dict[Any, Any]:
    return {
        name: round(value, _DIGITS) if isinstance(value, float) else value
        for name, value in figures.items()
    }
