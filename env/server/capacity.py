"""Number of episodes that a server plays at a time.

An honest episode of the default settings has nine frames. Each frame with a REPL holds one
descriptor of the server, its channel, and the session holds one more, its connection. Nothing is
kept for connections that arrive: where descriptors run out, those without a request are closed.
"""

from __future__ import annotations

from env.cgroups import most_processes
from env.server.sandbox.host import TYPICAL_FRAMES, SandboxHost, hard_descriptors, most_workers
from env.server.tree import TEXT_BYTES
from env.settings import DOCUMENT_CHARS, EnvSettings


def sessions_that_fit(
    setting: int,
    descriptors: int | None,
    memory_budget_mb: float | None,
    typical_episode_mb: float | None,
    document_chars: int = 0,
    processes: int | None = None,
) -> tuple[int, str]:
    """Number of sessions, at least 1, and the limit that decides it, in words.

    Args:
        setting: `env.max_sessions`.
        descriptors: hard limit of open files; None if unlimited.
        memory_budget_mb: memory for all living REPLs; None if it has no limit.
        typical_episode_mb: memory of a typical episode; None if unknown.
        document_chars: `DOCUMENT_CHARS` where clients bring their own papers, else 0.
        processes: limit of processes and threads; None without one.
    """
    limits = [
        (most_workers(descriptors), f"its hard limit of {descriptors} open files"),
        (most_workers(None, processes), f"its limit of {processes} processes"),
    ]
    fits = [(setting, "env.max_sessions")]
    fits += [(most // TYPICAL_FRAMES, why) for most, why in limits if most is not None]
    if memory_budget_mb is not None and typical_episode_mb is not None:
        of_memory = int(memory_budget_mb / typical_episode_mb)
        fits.append((of_memory, f"its budget of {memory_budget_mb:.0f} MB for REPLs"))
        # REPLs get half of the memory. Of the other half, half is for texts.
        texts_mb = memory_budget_mb / 2
        of_texts = int(texts_mb * (1 << 20) / (TEXT_BYTES + 4 * document_chars))
        fits.append((of_texts, f"its budget of {texts_mb:.0f} MB for texts"))
    count, reason = min(fits, key=lambda fit: fit[0])
    return max(1, count), reason


def capacity(settings: EnvSettings, host: SandboxHost) -> tuple[int, str]:
    """`sessions_that_fit` for this process, with the memory that its sandbox measured."""
    return sessions_that_fit(
        settings.max_sessions,
        hard_descriptors(),
        host.budget_mb,
        host.typical_mb,
        DOCUMENT_CHARS if settings.allow_documents else 0,
        most_processes(),
    )
