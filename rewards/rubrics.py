"""The reward as OpenEnv rubrics: an environment's `rubric`, its components under their names.

A rubric's second argument is what is judged: here the `EpisodeFacts` that the server keeps, since
what a client may observe holds no gold.
"""

from __future__ import annotations

from typing import Any

from openenv.core.rubrics import Rubric

from rewards.combine import COMPONENTS, EpisodeFacts, Score, score
from rewards.settings import RewardSettings


class ComponentRubric(Rubric):
    """One component of a score."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, action: Any, observation: Score) -> float:
        """The component's value, in [0, 1]."""
        return observation.components[self.name]


class EpisodeRubric(Rubric):
    """All four, weighted. Each instance belongs to one environment: it keeps its last score."""

    def __init__(self, settings: RewardSettings) -> None:
        super().__init__()
        self.settings = settings
        self.score: Score | None = None
        for name in COMPONENTS:
            # An attribute's name is the rubric's: WeightedSum would call them rubric_0 to 3.
            setattr(self, name, ComponentRubric(name))

    def forward(self, action: Any, observation: EpisodeFacts) -> float:
        """The total, in [0, 1]; `score` and each child's `last_score` hold the rest."""
        self.score = score(observation, self.settings)
        for child in self.children():
            child(action, self.score)
        return self.score.total

    def reset(self) -> None:
        """Forget the last episode."""
        self.score = None
