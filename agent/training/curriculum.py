"""Curriculum of difficulties: a sampler of levels and a gate between them.

Pure. `groups.py` calls `levels_for` before a step, and `tasks/train.py` passes the step's
trajectories to `update`. Every checkpoint contains `state`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from agent.rollouts.trajectory import Trajectory
from agent.settings import CurriculumSettings

METRIC = "primary_objective"
"""Component that decides: the others are earned at any level."""
FALL_BACK_BELOW = 0.1
"""Metric of a level that is too hard; most groups have no signal below."""
PATIENCE = 6
"""Steps before a fall-back: a quarter of a default run."""
MIN_STEPS = 3
"""Steps at a level before a promotion."""
REPLAY = 0.2
"""Share of problems from earlier levels, so that they are not forgotten."""


@dataclass(frozen=True)
class CurriculumEvent:
    """A change of level, for the log."""

    step: int
    kind: Literal["promotion", "fall_back"]
    source: str
    target: str
    metric: float
    """Mean of the metric over the window."""


class Curriculum:
    """Levels from easy to hard, one of them current.

    `auto` starts at the target. It falls back to the first level if the metric is still below
    `FALL_BACK_BELOW` after `PATIENCE` steps. `always` starts at the first level; `off` stays at
    the target. Except in `off`, a metric above `unlock_above` unlocks the next level, up to the
    target.
    """

    def __init__(self, settings: CurriculumSettings) -> None:
        self._settings = settings
        start = settings.levels[0] if settings.mode == "always" else settings.target
        self._level = settings.levels.index(start)
        self._visited = {self._level}
        self._steps_at_level = 0
        self._history: list[float] = []

    @property
    def level(self) -> str:
        """The current level."""
        return self._settings.levels[self._level]

    @property
    def index(self) -> int:
        """Index of the current level; 0 is the easiest."""
        return self._level

    @property
    def metric(self) -> float | None:
        """Mean of the metric over the window at this level; None before the first value."""
        window = self._history[-self._settings.window :]
        return float(np.mean(window)) if window else None

    def levels_for(self, count: int, rng: np.random.Generator) -> list[str]:
        """Levels of `count` problems: the current one, and a share of earlier ones.

        Earlier levels are easier ones that were current before. At least one problem has the
        current level, which the gate needs.
        """
        earlier = sorted(level for level in self._visited if level < self._level)
        replayed = 0
        if earlier:
            # Stochastic rounding: the share is right on average at any batch size.
            replayed = min(int(count * REPLAY + rng.random()), count - 1)
        names = self._settings.levels
        picked = [names[earlier[int(rng.integers(len(earlier)))]] for _ in range(replayed)]
        return [self.level] * (count - replayed) + picked

    def update(self, step: int, trajectories: Sequence[Trajectory]) -> list[CurriculumEvent]:
        """Add a step's trajectories to the metric and move the gate.

        Replayed levels and void episodes are left out. A step without other episodes counts as a
        step but adds no value.
        """
        values = [
            self._value(trajectory)
            for trajectory in trajectories
            if trajectory.void is None and trajectory.difficulty == self.level
        ]
        self._steps_at_level += 1
        if values:
            self._history.append(float(np.mean(values)))
            # Values outside the window are dropped to keep checkpoints small.
            self._history = self._history[-self._settings.window :]
        metric = self.metric
        if metric is None or self._settings.mode == "off":
            return []
        last = self._settings.levels.index(self._settings.target)
        ready = self._steps_at_level >= MIN_STEPS
        if ready and self._level < last and metric > self._settings.unlock_above:
            return [self._move(step, self._level + 1, metric)]
        tired = self._steps_at_level >= PATIENCE
        lost = self._level > 0 and metric < FALL_BACK_BELOW
        if self._settings.mode == "auto" and tired and lost:
            return [self._move(step, 0, metric)]
        return []

    def state(self) -> dict[str, Any]:
        """State for `restore`, as JSON values."""
        return {
            "level": self.level,
            "visited": [self._settings.levels[level] for level in sorted(self._visited)],
            "steps_at_level": self._steps_at_level,
            "history": list(self._history),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state, of a run with the same settings."""
        names = self._settings.levels
        self._level = names.index(state["level"])
        self._visited = {names.index(level) for level in state["visited"]}
        self._steps_at_level = int(state["steps_at_level"])
        self._history = [float(value) for value in state["history"]]

    def _value(self, trajectory: Trajectory) -> float:
        return trajectory.components.get(METRIC, 0.0)

    def _move(self, step: int, to: int, metric: float) -> CurriculumEvent:
        kind: Literal["promotion", "fall_back"] = "promotion" if to > self._level else "fall_back"
        event = CurriculumEvent(step, kind, self.level, self._settings.levels[to], metric)
        self._level = to
        self._visited.add(to)
        self._steps_at_level = 0
        self._history = []
        return event
