"""Number of episodes that a server plays at a time.

An honest episode of the default settings has nine frames. Each frame with a REPL holds one
descriptor of the server, its channel, and the session holds one more, its connection.
"""

from __future__ import annotations

import resource

from env.server.sandbox import TYPICAL_FRAMES, SandboxHost
from env.settings import EnvSettings

RESERVE = 24
"""Descriptors of the server itself (8 measured), of templates, and of connections that arrive."""


def sessions_that_fit(
    setting: int,
    hard_descriptors: int,
    memory_budget_mb: float | None,
    typical_episode_mb: float | None,
) -> tuple[int, str]:
    """Number of sessions, at least 1, and the limit that decides it, in words.

    Args:
        setting: `env.max_sessions`.
        hard_descriptors: hard limit of open files; below 0 if unlimited.
        memory_budget_mb: memory for all living REPLs; None if it has no limit.
        typical_episode_mb: memory of a typical episode; None if unknown.
    """
    fits = [(setting, "env.max_sessions")]
    if hard_descriptors >= 0:
        of_descriptors = (hard_descriptors - RESERVE) // (TYPICAL_FRAMES + 1)
        fits.append((of_descriptors, f"its hard limit of {hard_descriptors} open files"))
    if memory_budget_mb is not None and typical_episode_mb is not None:
        of_memory = int(memory_budget_mb / typical_episode_mb)
        fits.append((of_memory, f"its budget of {memory_budget_mb:.0f} MB for REPLs"))
    count, reason = min(fits, key=lambda fit: fit[0])
    return max(1, count), reason


def capacity(settings: EnvSettings, host: SandboxHost) -> tuple[int, str]:
    """`sessions_that_fit` for this process, with the memory that its sandbox measured."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sessions_that_fit(settings.max_sessions, hard, host.budget_mb, host.typical_mb)
