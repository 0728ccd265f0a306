"""Episodes on a machine without free processors, and processes that are stopped for seconds.

Honest trees play while endless loops of other sessions hold all slots: none may be void or read an
error. Hostile cells play beside busy processes: an endless loop or a sleep is the policy's fault,
so its observation must report an error. An honest cell whose process is stopped gets its result,
or its episode is void. With the default numbers, all drills together end within six minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

from agent.policies.scripted import block
from benchmarks.hostile import honest
from benchmarks.hostile.attackers import LOOP, LOSSES, READ, cells
from benchmarks.hostile.report import markdown
from benchmarks.hostile.server import SMALL, Limits, Server, child, serve
from env.errors import EpisodeError, RefusedError
from env.models import RLMAction, RLMObservation

LATER = f"""import time
while time.process_time() < 0.2:
    pass
{READ}"""
"""A sleep in the background lane. `time.sleep` raises, so the channel is the only bed."""
HOSTILE = {"endless loop": LOOP, "sleep at once": READ, "sleep later": LATER}
HONEST = "n = 0\nfor i in range(10_000_000):\n    n += i\nprint('sum', n)"
"""About half a second of CPU time."""
TREE = "honest tree"
_LOAD = 8
_AT_ONCE = 8
_TREES_S, _CELL_S = 150.0, 5.0
"""Seconds after which honest episodes in flight are given up; the same for each hostile cell."""
_WARM_S = 5.0
"""Seconds in which the endless loops come to hold all slots."""
_LIMIT_S = 3.0
"""`cell_wall_s` in the drill with SIGSTOP."""
_STOPPED_S = 5.0


async def one_cell(url: str, code: str) -> str:
    """End of an episode that plays one cell: `void: ...`, `error: ...` or `result: ...`."""
    client, _ = await honest.begin(url)
    try:
        seen = (await client.step(RLMAction(text=block(code)))).observation
    except EpisodeError as error:
        return f"void: {error}"
    finally:
        await client.close()
    return end_of(seen)


def end_of(seen: RLMObservation) -> str:
    """The same for an observation."""
    if seen.void is not None:
        return f"void: {seen.void}"
    text = seen.frames[0].messages[-1].content if seen.frames[0].messages else ""
    return f"{'error' if seen.counters.errors else 'result'}: {text.splitlines()[0][:80]}"


async def one_tree(url: str) -> str:
    """End of an honest episode of nine frames: `void: ...`, `error` or `result`."""
    try:
        client, seen = await honest.begin(url)
        try:
            end = await honest.tree(client, seen)
        finally:
            await client.close()
    except (EpisodeError, RefusedError, ConnectionError) as error:
        return f"void: {error}"
    if end.void is not None:
        return f"void: {end.void}"
    return "error" if end.counters.errors or end.counters.timeouts else "result"


Ends = Counter[tuple[str, str]]
"""Number of episodes by sort and end."""


async def batches(
    sorts: Sequence[str],
    play: Callable[[str], Coroutine[None, None, str]],
    episodes: int,
    limit_s: float,
) -> Ends:
    """Play episodes in batches, and print after each how many have ended and how long it takes.

    Args:
        sorts: sorts of the episodes, in turn.
        play: plays an episode of one sort and returns its end.
        episodes: number of episodes.
        limit_s: seconds after which episodes in flight are given up, and do not count.
    """
    ends: Ends = Counter()
    started = time.monotonic()
    for first in range(0, episodes, _AT_ONCE):
        batch = [sorts[n % len(sorts)] for n in range(first, min(first + _AT_ONCE, episodes))]
        tasks = {asyncio.create_task(play(sort)): sort for sort in batch}
        _, late = await asyncio.wait(tasks, timeout=max(0.0, started + limit_s - time.monotonic()))
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        ends.update((sort, task.result()) for task, sort in tasks.items() if task not in late)
        took = time.monotonic() - started
        left = min(took / max(1, ends.total()) * (episodes - ends.total()), limit_s - took)
        voids = sum(count for (_, end), count in ends.items() if end.startswith("void"))
        print(
            f"{ends.total()} of {episodes} episodes, {voids} void; {took:.0f} s, "
            f"about {max(left, 0.0):.0f} s left",
            file=sys.stderr,
            flush=True,
        )
        if late or left <= 0:
            break
    return ends


def loops(url: str, pipe: Connection) -> None:
    """Play endless loops in sessions of their own: the target of a process without another end."""

    async def player() -> None:
        while True:
            with contextlib.suppress(*LOSSES):
                await cells(url, LOOP)
            await asyncio.sleep(0.1)

    async def players() -> None:
        await asyncio.gather(*(player() for _ in range(_LOAD)))

    asyncio.run(players())


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Busy processes, each in its own session, because the kernel may schedule by session."""
    fork = multiprocessing.get_context("fork")
    busy = [fork.Process(target=_spin, daemon=True) for _ in range(processes)]
    for process in busy:
        process.start()
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.join()


def _spin() -> None:
    os.setsid()
    while True:
        pass


async def stopped(server: Server, which: str) -> str:
    """End of an honest cell during which processes are stopped for longer than its limit."""
    client, _ = await honest.begin(server.url)
    try:
        if which != "zygote":  # the cell that opens the REPL needs the zygote
            await client.step(RLMAction(text=block("x = 1")))
        pids = _processes(server)
        cell = asyncio.create_task(client.step(RLMAction(text=block(HONEST))))
        await asyncio.sleep(0.0 if which == "zygote" else 0.2)
        for pid in pids[which]:
            os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(_STOPPED_S)
        finally:
            for pid in pids[which]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        try:
            return end_of((await cell).observation)
        except EpisodeError as error:
            return f"void: {error}"
    finally:
        await client.close()


def _processes(server: Server) -> dict[str, list[int]]:
    """Processes to stop, by name. The zygote comes first, the youngest worker last."""
    zygote, *workers = server.descendants
    return {
        "zygote": [zygote],
        "worker": workers[-1:],
        "server and workers": [server.process.pid, *workers],
    }


def report(way: Sequence[str], limits: Limits, episodes: int, hostile_cells: int) -> int:
    """Play all drills, and print their tables; return 1 if a promise was broken or not shown."""
    with serve(way, limits) as server:
        with child(loops, server.url):
            time.sleep(_WARM_S)
            before, started = server.cpu_s(), time.monotonic()
            trees = asyncio.run(batches([TREE], lambda _: one_tree(server.url), episodes, _TREES_S))
            cpu_s, took = server.cpu_s() - before, time.monotonic() - started
        print(f"{took:.0f} s beside {_LOAD} endless loops; server and cells: {cpu_s:.0f} CPU s\n")
        kept = _held("end of an honest episode", trees, episodes, "result")
    with serve(way, limits) as server, load(_LOAD):  # the loops of the first one go on for a while
        hostile = asyncio.run(
            batches(
                list(HOSTILE),
                lambda sort: one_cell(server.url, HOSTILE[sort]),
                hostile_cells,
                _CELL_S * hostile_cells,
            )
        )
    kept &= _held(f"end beside {_LOAD} busy processes", hostile, hostile_cells, "error")
    drill = f"env.limits.cell_wall_s={_LIMIT_S:g}"
    with serve(way, limits, (SMALL, drill)) as server:
        rows: list[Sequence[object]] = []
        for which in _processes(server):
            end = asyncio.run(stopped(server, which))
            kept &= not end.startswith("error")
            rows.append((which, f"{_STOPPED_S:g} s", end))
            print(which, end, file=sys.stderr, flush=True)
    print(markdown(("stopped", "for", "end of an honest cell"), rows))
    return int(not kept)


def _held(title: str, ends: Ends, episodes: int, wanted: str) -> bool:
    """Print a table; return whether every episode was played and ended as wanted."""
    rows = [(sort, count, end) for (sort, end), count in ends.most_common()]
    right = sum(count for (_, end), count in ends.items() if end.startswith(wanted))
    print(markdown(("sort", "episodes", title), rows))
    print(f"\n{right} of {episodes} ended with `{wanted}`, {episodes - ends.total()} not played\n")
    return right == episodes
