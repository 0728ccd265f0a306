"""Places of the server: each session takes one, and the rest is refused.

A full server ends sessions that wait for their client: one without an episode after ten seconds,
one that plays after half a minute if clients of its address hold more than half of all places, any
other after a quarter of the idle time. Sessions that play give way to another address alone, so
that nobody disturbs themselves. A client that plays on keeps its place.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from ipaddress import ip_network
from typing import Protocol

_SILENT_S = 10.0
"""Seconds after which a session without an episode gives way to another client."""
_CROWD_S = 30.0
"""Seconds without a step after which one gives way whose address holds more than half."""
_WAIT_S = 1.0
"""Seconds that a client waits for a place, because a session needs a moment to end."""
_QUEUE = 32
"""Clients that wait for a place."""


class Occupant(Protocol):
    """A session, as far as its place matters."""

    address: str
    """Of its client, as `network` gives it."""

    def end(self) -> bool:
        """Close the session if it waits for its client; return whether it does."""


class Seats:
    """Counts sessions. All methods run on the event loop.

    `limit` opens it. Without places, every session is refused.

    Args:
        idle_s: seconds without a message after which a session ends in any case.
        silent_s: seconds until a session without an episode may be closed.
        crowd_s: seconds without a step until one may be closed whose address holds more than half.
        wait_s: seconds that a client waits for a place.
    """

    def __init__(
        self,
        idle_s: float,
        silent_s: float = _SILENT_S,
        crowd_s: float = _CROWD_S,
        wait_s: float = _WAIT_S,
    ) -> None:
        self.rule = "this server does not play yet"
        self._free = asyncio.Semaphore(0)
        self._count = 0
        self._idle_s, self._silent_s, self._crowd_s = idle_s, silent_s, crowd_s
        self._wait_s = wait_s
        self._queue = 0
        self._since: dict[Occupant, float] = {}
        """When a session started, or last answered a step; the oldest first."""
        self._playing: set[Occupant] = set()

    def limit(self, count: int, reason: str) -> None:
        """Set the number of sessions at the same time, and why there are not more, in words."""
        self.rule = f"this server plays at most {count} episodes at a time ({reason})"
        self._free, self._count = asyncio.Semaphore(count), count

    async def take(self, session: Occupant) -> bool:
        """Take a place; return whether one was free."""
        if self._free.locked():
            self._end_oldest(session.address)
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
        self._since[session] = asyncio.get_running_loop().time()
        return True

    def plays(self, session: Occupant) -> None:
        """Note that the session has begun an episode, or played a step of it."""
        self._playing.add(session)
        self._since.pop(session, None)
        self._since[session] = asyncio.get_running_loop().time()

    def leave(self, session: Occupant) -> None:
        """Give the place back."""
        self._since.pop(session, None)
        self._playing.discard(session)
        self._free.release()

    def _end_oldest(self, address: str) -> None:
        """Close the session that has waited longest, if it has had its time."""
        now = asyncio.get_running_loop().time()
        held = Counter(session.address for session in self._since)
        for session, since in list(self._since.items()):
            most_s = self._silent_s
            if session in self._playing:
                crowd = 2 * held[session.address] > self._count
                most_s = self._crowd_s if crowd else self._idle_s / 4
                if session.address == address:
                    continue
            if now - since >= most_s and session.end():
                del self._since[session]
                break


def network(address: str) -> str:
    """The address; of IPv6 the network, in which one client has as many as it likes."""
    address = address.removeprefix("::ffff:")  # IPv4 at a socket of both
    try:
        return str(ip_network((address, 64 if ":" in address else 32), strict=False))
    except ValueError:  # a socket of a file, or a proxy's word
        return address
