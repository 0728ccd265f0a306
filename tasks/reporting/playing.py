"""Plays episodes for a stage, which shows how far they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from tasks.reporting import progress

if TYPE_CHECKING:
    from agent.policies.base import Policy
    from env.client import Sessions


def play_shown(
    what: str,
    policy: Policy,
    where: str | Sessions,
    specs: Sequence[EpisodeSpec],
    *,
    sessions: int,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Play one episode for each spec, as `engine.play` does, under the name `what`.

    Episodes that run side by side end late, all at about the same time, so turns are counted too.
    """
    from agent.rollouts.engine import play

    with progress.doing(what, "episodes", len(specs), at_once=min(sessions, len(specs))) as work:

        def written(_: int) -> None:
            work.turns += 1

        def ended(episode: Trajectory) -> None:
            work.advance(seconds=episode.seconds)
            if on_episode is not None:
                on_episode(episode)

        return play(policy, where, specs, sessions=sessions, on_episode=ended, on_turn=written)
