"""Places of the server: each session takes one, and the rest is refused."""

from __future__ import annotations

import asyncio
from typing import Protocol

_SILENT_S = 10.0
"""Seconds after which a session without an episode gives way to another client."""
_WAIT_S = 1.0
"""Seconds that a client waits for a place, because a session needs a moment to end."""
_QUEUE = 32
"""Clients that wait for a place."""


class Occupant(Protocol):
    """A session, as far as its place matters."""

    def end(self) -> bool:
        """Close the session if it waits for its client; return whether it does."""


class Seats:
    """Counts sessions. All methods run on the event loop.

    `limit` opens it. Without places, every session is refused.

    Args:
        silent_s: seconds until a session without an episode may be closed.
        wait_s: seconds that a client waits for a place.
    """

    def __init__(self, silent_s: float = _SILENT_S, wait_s: float = _WAIT_S) -> None:
        self.rule = "this server does not play yet"
        self._free = asyncio.Semaphore(0)
        self._silent_s, self._wait_s = silent_s, wait_s
        self._queue = 0
        self._silent: dict[Occupant, float] = {}
        """Sessions without an episode, by the time of their start, the oldest first."""

    def limit(self, count: int, reason: str) -> None:
        """Set the number of sessions at the same time, and why there are not more, in words."""
        self.rule = f"this server plays at most {count} episodes at a time ({reason})"
        self._free = asyncio.Semaphore(count)

    async def take(self, session: Occupant) -> bool:
        """Take a place; return whether one was free."""
        if self._free.locked():
            self._end_oldest()
            if self._queue >= _QUEUE:
                return False
        self._queue += 1
        try:
            async with asyncio.timeout(self._wait_s):
                await self._free.acquire()
        except TimeoutError:
            return False
        finally:
            self._queue -= 1
        self._silent[session] = asyncio.get_running_loop().time()
        return True

    def plays(self, session: Occupant) -> None:
        """Note that the session has begun an episode."""
        self._silent.pop(session, None)

    def leave(self, session: Occupant) -> None:
        """Give the place back."""
        self._silent.pop(session, None)
        self._free.release()

    def _end_oldest(self) -> None:
        """Close the oldest session that has had its time and has no episode."""
        latest = asyncio.get_running_loop().time() - self._silent_s
        for session, started in list(self._silent.items()):
            if started > latest:
                break
            if session.end():
                del self._silent[session]
                break
