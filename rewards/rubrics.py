"""The reward as OpenEnv rubrics: an environment's `rubric`, with one child per component.

The second argument of a rubric is the object that it scores: here the server's `EpisodeFacts`,
because a client's observations contain no gold.
"""

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
    """The weighted sum of all four. An instance belongs to one environment: it keeps a score."""

    def __init__(self, settings: RewardSettings) -> None:
        super().__init__()
        self.settings = settings
        self.score: Score | None = None
        for name in COMPONENTS:
            # The attribute name becomes the rubric's name; WeightedSum names them rubric_0 to 3.
            setattr(self, name, ComponentRubric(name))

    def forward(self, action: Any, observation: EpisodeFacts) -> float:
        """The total in [0, 1]; `score` and the children's `last_score` keep the components."""
        self.score = score(observation, self.settings)
        for child in self.children():
            child(action, self.score)
        return self.score.total

    def reset(self) -> None:
        """Forget the last episode."""
        self.score = None
