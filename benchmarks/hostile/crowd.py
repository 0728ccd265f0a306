"""All sessions of a server at once, each with a tree of nine living frames."""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Sequence

from benchmarks.hostile import honest
from benchmarks.hostile.server import Limits, Sampler, serve
from env.errors import EpisodeError, RefusedError

LEAST = 100
"""Sessions that play under any limit of descriptors."""
ROOMY = 20_000
"""Hard limit of descriptors from which all sessions play."""
_HELD_S = 600.0


async def crowd(url: str, sessions: int) -> Counter[str]:
    """Number of sessions by end: `played`, `refused: ...` or `lost: ...`.

    The first sessions hold all their frames before the others connect.
    """
    ends: Counter[str] = Counter()
    holding = asyncio.Semaphore(0)
    released = asyncio.Event()

    async def hold() -> None:
        holding.release()
        await released.wait()

    async def one() -> str:
        try:
            client, seen = await honest.begin(url)
        except (RefusedError, EpisodeError, ConnectionError) as error:
            return f"{'refused' if is_refusal(error) else 'lost'}: {error}"
        try:
            end = await honest.tree(client, seen, hold)
        except (RefusedError, EpisodeError) as error:
            return f"lost: {error}"
        finally:
            await client.close()
        return "played" if end.void is None else f"lost: {end.void}"

    async def counted() -> None:
        ends[await one()] += 1
        holding.release()  # a second time for a tree that was held, when nobody waits any more

    tasks = []
    async with asyncio.timeout(_HELD_S):
        for wave in (min(sessions, LEAST), max(0, sessions - LEAST)):
            tasks += [asyncio.create_task(counted()) for _ in range(wave)]
            for _ in range(wave):
                await holding.acquire()
    released.set()
    await asyncio.gather(*tasks)
    return ends


def is_refusal(error: Exception) -> bool:
    """Whether the server said in words why it does not play."""
    return "try again later" in str(error)


def report(way: Sequence[str], limits: Limits, sessions: int) -> int:
    """Play, and print the ends; return 1 if too few sessions played or one was lost."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with serve(way, limits) as server, Sampler(server) as sampler:
        ends = asyncio.run(crowd(server.url, sessions))
        lived = server.alive
    print(f"{sessions} sessions of {honest.FRAMES} living frames, descriptors {limits.soft} soft,")
    print(f"{limits.hard} hard; {sampler.total_mb:.0f} MB; server lives: {lived}")
    for end, count in ends.most_common():
        print(f"{count:5} {end}")
    wanted = sessions if limits.hard >= ROOMY else min(sessions, LEAST)
    return 0 if lived and ends["played"] >= wanted and not any("lost" in e for e in ends) else 1
