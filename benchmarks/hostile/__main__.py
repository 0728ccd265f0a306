"""Measure honest episodes beside attackers: throughput, voids, latency, memory and log.

    python -m benchmarks.hostile [--start module|uvicorn] [--seconds 12] [--json FILE]
    python -m benchmarks.hostile --sessions 256 --hard 1024
    python -m benchmarks.hostile --starve [--episodes 200]

Each phase starts its own server with a memory group and a soft limit of 1,024 descriptors. Where
no group can be made, the memory of all processes is summed ten times a second instead. A server
plays about 16 sessions for each GB, so the limit is 8 GB, and 20 GB for 256 sessions. Each kind of
attacker has a phase, and one phase has all of them. Each is compared with the phases without
attackers before and after it. Attackers run in one process at nice 19. The exit code is 1 if a
promise was broken.

`--sessions` plays trees of nine living frames in all sessions at once. `--starve` plays honest
trees beside endless loops of other sessions, and loops and sleeps beside busy processes. It also
stops processes of the server for longer than a cell's limit. It takes about two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.hostile import attackers, crowd, honest, starve
from benchmarks.hostile.report import QUIET, PhaseRow, causes, figures, verdicts
from benchmarks.hostile.server import FORK, WAYS, Limits, Sampler, child, serve

ALL = "all"
_PHASE_MB, _CROWD_MB = 8192, 20_480
"""Default memory limits: for 128 sessions, honest ones and attackers, and for more than 256."""
_ENOUGH = 1.1
"""Multiple of the memory before an attack at which waiting for it to return ends."""


def phase(way: str, limits: Limits, kind: str, options: argparse.Namespace) -> PhaseRow:
    """Play one phase on a new server."""
    kinds = {QUIET: [], ALL: list(attackers.KINDS)}.get(kind, [kind])
    rounds = FORK.Value("q", 0, lock=False)
    watch = honest.Watch()

    async def measure() -> tuple[float, float, Sampler]:
        await watch.open(server.url)
        players.send(None)
        players.recv()  # every session has played an episode
        before, until = server.pss_mb(), time.monotonic() + options.seconds
        with Sampler(server) as sampler:
            siege.send(None)
            players.send(until)
            await watch.run(lambda: time.monotonic() > until or not server.alive)
        return before, until, sampler

    with (
        serve(WAYS[way], limits) as server,
        child(play_honest, server.url, options.honest) as players,
    ):
        with child(attackers.besiege, server.url, kinds, options.attackers, rounds) as siege:
            before, until, sampler = asyncio.run(measure())
        played: honest.Played = players.recv()
        return PhaseRow(
            attackers=kind,
            seconds=options.seconds,
            episodes=sum(at <= until for at in played.ended_s),
            cpu_s=sampler.cpu_s,
            voids=dict(played.voids + watch.voids),
            refused=played.refused.total(),
            harmed=played.harmed,
            cells_s=watch.cells,
            newcomers=len(watch.newcomers),
            turned_away=watch.turned_away.total(),
            rounds=rounds.value,
            server_mb=sampler.server_mb,
            total_mb=sampler.total_mb,
            before_mb=before,
            after_mb=server.settled_mb(_ENOUGH * before),
            log_bytes=server.log.stat().st_size,
            lived=server.alive,
            limit_mb=limits.memory_mb,
        )


def play_honest(url: str, sessions: int, pipe: Connection) -> None:
    """Play honest trees: the target of a process of its own.

    The pipe gives a message to begin, then the end of the measured time, and takes the results.
    """

    async def warm() -> float:
        pipe.send(None)
        return float(await asyncio.to_thread(pipe.recv))

    async def play() -> None:
        pipe.recv()
        pipe.send(await honest.play(url, sessions, warm))
        await asyncio.sleep(3600)  # the sessions stay open while memory is measured

    asyncio.run(play())


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--start", choices=sorted(WAYS), default="module", help="way of starting")
    made.add_argument("--seconds", type=float, default=12.0, help="measured time of each phase")
    made.add_argument("--honest", type=int, default=64, help="honest episodes in flight")
    made.add_argument("--attackers", type=int, default=8, help="attackers of each kind")
    made.add_argument("--only", nargs="*", choices=[*attackers.KINDS, ALL], help="kinds to play")
    made.add_argument("--json", type=Path, help="write the figures to this file")
    made.add_argument("--sessions", type=int, help="sessions that play nine living frames at once")
    made.add_argument("--hard", type=int, default=20_000, help="hard limit of descriptors")
    made.add_argument("--memory-mb", type=int, help="memory limit of the server")
    made.add_argument("--starve", action="store_true", help="starve and stop the sandbox")
    made.add_argument("--episodes", type=int, default=200, help="honest episodes of --starve")
    made.add_argument("--cells", type=int, default=24, help="hostile cells of --starve")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the tables."""
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the server ends, too
    memory_mb = options.memory_mb or (_CROWD_MB if options.sessions else _PHASE_MB)
    limits = Limits(hard=options.hard, memory_mb=memory_mb)
    if options.starve:
        return starve.report(WAYS[options.start], limits, options.episodes, options.cells)
    if options.sessions:
        return crowd.report(WAYS[options.start], limits, options.sessions)
    rows = []
    kinds = options.only or [*attackers.KINDS, ALL]
    for kind in [QUIET, *(name for attack in kinds for name in (attack, QUIET))]:
        rows.append(phase(options.start, limits, kind, options))
        print(f"{kind}: {rows[-1].per_s:.1f} episodes/s", file=sys.stderr, flush=True)
    print(figures(rows))
    table, held = verdicts(rows)
    print(f"\n{table}\n{causes(rows)}")
    if options.json:
        data = {"start": options.start, "phases": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(data, indent=1))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
