"""Hostile cells on a machine without free processors, and processes that are stopped for seconds.

An endless loop, a sleep or a read of the channel is the policy's fault, so its observation must
report an error. A stopped or starved process is not, so an honest cell must get its result, or its
episode is void.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from agent.policies.scripted import block
from benchmarks.hostile import honest
from benchmarks.hostile.attackers import LOOP, READ
from benchmarks.hostile.report import markdown
from benchmarks.hostile.server import SMALL, Limits, Server, serve
from env.errors import EpisodeError
from env.models import RLMAction, RLMObservation

LATER = f"""import time
while time.process_time() < 0.2:
    pass
{READ}"""
"""A sleep in the background lane. `time.sleep` raises, so the channel is the only bed."""
HOSTILE = {"endless loop": LOOP, "sleep at once": READ, "sleep later": LATER}
HONEST = "n = 0\nfor i in range(10_000_000):\n    n += i\nprint('sum', n)"
"""About half a second of CPU time."""
_LOAD = 8
_AT_ONCE = 8
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


async def starved(url: str, episodes: int) -> dict[str, Counter[str]]:
    """Ends of so many episodes of hostile cells, by sort of cell."""
    ends: dict[str, Counter[str]] = {name: Counter() for name in HOSTILE}
    names = iter([list(HOSTILE)[n % len(HOSTILE)] for n in range(episodes)])

    async def player() -> None:
        for name in names:
            ends[name][await one_cell(url, HOSTILE[name])] += 1

    await asyncio.gather(*(player() for _ in range(_AT_ONCE)))
    return ends


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


def report(way: Sequence[str], limits: Limits, episodes: int) -> int:
    """Play both drills, and print their tables; return 1 if a promise was broken."""
    with serve(way, limits) as server, load(_LOAD):
        os.setpriority(os.PRIO_PROCESS, server.descendants[0], 19)
        started = time.monotonic()
        ends = asyncio.run(starved(server.url, episodes))
        took = time.monotonic() - started
    wrong = sum(
        n for counts in ends.values() for end, n in counts.items() if not end.startswith("error")
    )
    rows: list[Sequence[object]] = [
        (name, count, end) for name, counts in ends.items() for end, count in counts.most_common()
    ]
    print(markdown(("cell", "episodes", "end"), rows))
    print(f"\n{wrong} of {episodes} read no error; {took:.0f} s beside {_LOAD} busy processes\n")
    blamed = 0
    drill = f"env.limits.cell_wall_s={_LIMIT_S:g}"
    with serve(way, limits, (SMALL, drill)) as server:
        rows = []
        for which in _processes(server):
            end = asyncio.run(stopped(server, which))
            blamed += end.startswith("error")
            rows.append((which, f"{_STOPPED_S:g} s", end))
            print(which, end, file=sys.stderr)
    print(markdown(("stopped", "for", "end of an honest cell"), rows))
    return int(wrong > 0 or blamed > 0)
