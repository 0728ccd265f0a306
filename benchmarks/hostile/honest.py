"""Honest clients: trees of nine frames, and cells whose latency is measured."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from agent.policies.scripted import block
from env.client import RLMEnv
from env.errors import EpisodeError, RefusedError
from env.models import FrameTurn, RLMAction, RLMObservation
from env.problems.fields import read_question

FRAMES = 9
PATIENCE_S = 30.0
"""Seconds that episodes in flight may last after the measured time."""
_PAUSE_S = 0.2
_LOSSES = (EpisodeError, RefusedError, ConnectionError)

Hold = Callable[[], Awaitable[object]]


@dataclass
class Played:
    """Results of honest clients."""

    ended_s: list[float] = field(default_factory=list)
    """Time of each scored episode, on the monotonic clock of the machine."""
    voids: Counter[str] = field(default_factory=Counter)
    """Episodes that were lost, by cause."""
    refused: Counter[str] = field(default_factory=Counter)
    """Episodes that the server refused to begin, by its words."""
    harmed: int = 0
    """Scored episodes with an error or a timeout, which an honest tree never causes."""

    def add(self, end: RLMObservation) -> None:
        """Count an episode that reached its end."""
        if end.void is not None:
            self.voids[end.void] += 1
            return
        self.ended_s.append(time.monotonic())
        self.harmed += bool(end.counters.errors or end.counters.timeouts)


async def begin(url: str) -> tuple[RLMEnv, RLMObservation]:
    """A connected client, and the first observation of its episode.

    Raises:
        EpisodeError, RefusedError, ConnectionError: the server does not begin one.
    """
    client = RLMEnv(url)
    try:
        await client.connect()
        return client, await reset(client)
    except BaseException:
        await client.close()
        raise


async def reset(client: RLMEnv) -> RLMObservation:
    """Begin an episode with eight papers.

    Raises:
        EpisodeError: the connection or the server failed.
        RefusedError: the server refuses.
    """
    seen = (await client.reset(difficulty="medium")).observation
    if seen.refused is not None:
        raise RefusedError(seen.refused)
    return seen


async def tree(client: RLMEnv, seen: RLMObservation, hold: Hold | None = None) -> RLMObservation:
    """Play a tree that hands eight papers to eight children; return its last observation.

    Args:
        client: client whose episode has just begun.
        seen: its first observation.
        hold: awaited once while all nine frames hold a process. Children then need two turns, and
            one without it.

    Raises:
        EpisodeError: the connection or the server failed.
        RefusedError: the server refuses a turn.
    """
    names: dict[int, tuple[str, str]] = {}
    turns: Counter[int] = Counter()
    slow = hold is not None
    while not seen.done:
        if hold is not None and len(turns) == FRAMES:
            await hold()
            hold = None
        action = []
        for view in seen.frames:
            if view.status == "ready":
                if view.frame not in names:
                    names[view.frame] = read_question(view.messages[-1].content)
                code = _code(view.depth, turns[view.frame], slow, *names[view.frame])
                action.append(FrameTurn(frame=view.frame, text=block(code)))
                turns[view.frame] += 1
        seen = (await client.step(RLMAction(turns=action))).observation
        if seen.refused is not None:
            raise RefusedError(seen.refused)
    return seen


def _code(depth: int, turn: int, slow: bool, x: str, y: str) -> str:
    search = f'h = search(context, "{x}")\n'
    if depth:
        final = f'FINAL([s for s in h if "{y}" in s])'
        return search + final if not slow else final if turn else search + "print(len(h))"
    if turn == 0:
        return search + "print(len(h))"
    count = FRAMES - 1
    return (
        f'FINAL(rlm_query_batched(["{x} on {y}"] * {count}, '
        f"[context[i] for i in list(context)[:{count}]]))"
    )


async def play(url: str, sessions: int, warm: Callable[[], Awaitable[float]]) -> Played:
    """Play trees in `sessions` sessions.

    Args:
        url: address of the server.
        sessions: episodes in flight.
        warm: awaited after one uncounted episode of each session; returns the time at which no
            more episodes begin.
    """
    played = Played()
    clients: list[RLMEnv | None] = await asyncio.gather(*(_warm(url) for _ in range(sessions)))
    until = await warm()
    tasks = [asyncio.create_task(_again(url, one, until, played)) for one in clients]
    _, late = await asyncio.wait(tasks, timeout=until - time.monotonic() + PATIENCE_S)
    for task in late:
        task.cancel()
    if late:
        played.voids["without an answer at the end"] += len(late)
    return played


async def _warm(url: str) -> RLMEnv | None:
    try:
        client, seen = await begin(url)
        await tree(client, seen)
    except _LOSSES:
        return None
    return client


async def _again(url: str, client: RLMEnv | None, until: float, played: Played) -> None:
    """Play episodes in one session until the time is over; connect again after a loss."""
    while time.monotonic() < until:
        try:
            if client is None:
                client, seen = await begin(url)
            else:
                seen = await reset(client)
        except _LOSSES as error:
            played.refused[str(error)[:120]] += 1
            await _closed(client)
            client = None
            continue
        try:
            played.add(await tree(client, seen))
        except _LOSSES as error:
            played.voids[str(error)[:120]] += 1
            await _closed(client)
            client = None


async def _closed(client: RLMEnv | None) -> None:
    if client is not None:
        await client.close()
    await asyncio.sleep(_PAUSE_S)


@dataclass
class Watch:
    """Latencies that other users see, in seconds."""

    cells: list[float] = field(default_factory=list)
    """Time of each cell `x = 1` in a session that is open from the start."""
    newcomers: list[float] = field(default_factory=list)
    """Time from connection to the first observation of each new client that was served."""
    turned_away: Counter[str] = field(default_factory=Counter)
    """New clients that were not served, by cause."""
    voids: Counter[str] = field(default_factory=Counter)
    """Episodes of the open session that were lost, by cause."""

    gap_s: float = 0.0
    """Longest time without an answer to the open session."""
    paused_s: float = 0.0
    """Longest time in which this process itself did not run; latencies contain it."""

    async def open(self, url: str) -> None:
        """Open the session that `run` observes.

        Raises:
            EpisodeError, RefusedError, ConnectionError: the server does not begin an episode.
        """
        self._url = url
        self._client, self._seen = await begin(url)

    async def run(self, stop: Callable[[], bool]) -> None:
        """Measure until `stop`; a wait that lasts until then counts with its time."""
        tasks = [asyncio.create_task(work(stop)) for work in (self._cells, self._newcomers)]
        while not stop():
            started = time.monotonic()
            await asyncio.sleep(0.05)
            self.paused_s = max(self.paused_s, time.monotonic() - started)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _cells(self, stop: Callable[[], bool]) -> None:
        url, seen = self._url, self._seen
        client: RLMEnv | None = self._client
        while not stop():  # a client that is cancelled may say that its connection was lost
            started = time.monotonic()
            try:
                if client is None:
                    client, seen = await begin(url)
                elif seen.done:
                    seen = await reset(client)
                else:
                    seen = await self._cell(client)
            except _LOSSES as error:
                self.voids[str(error)[:120]] += 1
                await _closed(client)
                client = None
            finally:
                self.gap_s = max(self.gap_s, time.monotonic() - started)
            await asyncio.sleep(0.02)

    async def _cell(self, client: RLMEnv) -> RLMObservation:
        started = time.monotonic()
        try:
            seen = (await client.step(RLMAction(text=block("x = 1")))).observation
        finally:
            self.cells.append(time.monotonic() - started)
        if seen.void is not None:
            self.voids[seen.void] += 1
        return seen

    async def _newcomers(self, stop: Callable[[], bool]) -> None:
        while not stop():
            started = time.monotonic()
            try:
                client, _ = await begin(self._url)
                self.newcomers.append(time.monotonic() - started)
                await client.close()
            except _LOSSES as error:
                self.turned_away[str(error)[:120]] += 1
            except asyncio.CancelledError:
                if time.monotonic() - started > 1.0:
                    self.turned_away["waited in vain"] += 1
                raise
            await asyncio.sleep(0.5)
