"""Facts of an episode without a fault, for the reward."""

from collections.abc import Collection
from typing import Any

from rewards.combine import EpisodeFacts
from rewards.components import by_papers
from rewards.settings import RewardSettings


def episode(
    turns: int = 1, papers_read: Collection[str] = (), sub_calls: int = 0, **facts: Any
) -> EpisodeFacts:
    """An answered episode in which every turn had its block, unless the facts say otherwise."""
    used = turns + sub_calls
    usual = {
        "answered": True,
        "turns_with_error": 0,
        "turns_with_one_block": turns,
        "work": by_papers(facts["papers"], facts["evidence"], papers_read, used, RewardSettings()),
    }
    return EpisodeFacts(turns=turns, **usual | facts)
