"""Held-out problems of each level on a real server, for benchmarks that compare policies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agent.policies.base import Policy
from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from env.client import Sessions
from env.problems.schema import Problem
from env.problems.store import ProblemStore
from tasks.config.params import Params
from tasks.deployment.local import local_server

SESSIONS = 32


@dataclass(frozen=True)
class Arena:
    """Problems, and sessions of the server that serves them."""

    levels: list[str]
    problems: list[Problem]
    sessions: Sessions

    def play(self, name: str, policy: Policy) -> list[Trajectory]:
        """Play one episode of each problem.

        Raises:
            RuntimeError: an episode is void; means would then be over fewer problems.
        """
        specs = [EpisodeSpec(p.problem_id, seed=7919 * n) for n, p in enumerate(self.problems)]
        episodes = play(policy, self.sessions, specs, sessions=self.sessions.count)
        if reason := next((episode.void for episode in episodes if episode.void), None):
            raise RuntimeError(f"{name}: {reason}")
        return episodes


@contextmanager
def arena(params: Params, per_level: int) -> Iterator[Arena]:
    """Start a server with these settings, and choose `per_level` test problems of each level."""
    store = ProblemStore.generate(params.prepare.synthetic)
    levels = params.prepare.synthetic.levels_of("test")
    problems = [store.get(i) for level in levels for i in store.ids("test", level)[:per_level]]
    with local_server(params, data=None) as url, Sessions(url, SESSIONS) as sessions:
        yield Arena(levels, problems, sessions)
