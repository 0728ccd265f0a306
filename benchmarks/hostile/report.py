"""Figures of a phase, and the promises that they keep or break."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

QUIET = "none"
"""Name of the phase without attackers."""
CPU_SHARE = 1 / 2
"""Least honest episodes per CPU second of server and sandbox, as a share of the quiet phases."""
WALL_SHARE = 1 / 3
"""The same per second of wall time."""
LATENCY_S = 1.0
"""Longest median of the cell `x = 1`."""
BACK = 1.25
"""Largest memory after an attack, as a multiple of that after the same time without one."""
LOG_BYTES = 1_000_000
GAP_S = 2.0
"""Longest wait of other clients during a single attack."""


@dataclass(frozen=True)
class PhaseRow:
    """Figures of one phase; times in seconds, memory in MB."""

    attackers: str
    seconds: float
    episodes: int
    """Honest episodes that ended with a score in the measured time."""
    cpu_s: float
    """CPU time of server and sandbox."""
    voids: dict[str, int]
    """Honest episodes that were lost, by cause."""
    refused: int
    """Refused attempts to begin an honest episode."""
    harmed: int
    """Honest episodes with an error that no honest tree causes."""
    cells_s: list[float]
    """Latency of each cell `x = 1`."""
    newcomers: int
    turned_away: int
    rounds: int
    """Rounds of attacks that ended."""
    server_mb: float
    """Largest resident set of the server's process."""
    total_mb: float
    """Largest proportional set size of server and sandbox."""
    before_mb: float
    after_mb: float
    log_bytes: int
    lived: bool
    limit_mb: int = field(default=2048)

    @property
    def per_s(self) -> float:
        """Honest episodes per second of wall time."""
        return self.episodes / self.seconds

    @property
    def per_cpu_s(self) -> float:
        """Honest episodes per CPU second of server and sandbox."""
        return self.episodes / self.cpu_s if self.cpu_s else 0.0

    @property
    def median_s(self) -> float:
        """Median latency of `x = 1`; infinite if no cell was answered."""
        return statistics.median(self.cells_s) if self.cells_s else float("inf")

    @property
    def p95_s(self) -> float:
        """Latency that 95 % of the cells do not exceed."""
        if len(self.cells_s) < 2:
            return self.median_s
        return statistics.quantiles(self.cells_s, n=20, method="inclusive")[-1]


def promises(quiet: PhaseRow, row: PhaseRow) -> dict[str, bool]:
    """Whether each promise held in a phase, compared with the quiet phases beside it."""
    return {
        "the server lives": row.lived,
        "memory below its limit": row.lived and row.total_mb < row.limit_mb,
        f"episodes per CPU second at least {CPU_SHARE:.0%}": (
            row.episodes > 0 and row.per_cpu_s >= CPU_SHARE * quiet.per_cpu_s
        ),
        f"episodes per second at least {WALL_SHARE:.0%}": (
            row.episodes > 0 and row.per_s >= WALL_SHARE * quiet.per_s
        ),
        "no honest void": not row.voids,
        "no honest session refused": not row.refused,
        "no honest episode harmed": not row.harmed,
        f"`x = 1` below {LATENCY_S:g} s in the median": row.median_s < LATENCY_S,
        "memory back": row.lived and row.after_mb <= BACK * quiet.after_mb,
        "log below 1 MB": row.log_bytes < LOG_BYTES,
    }


_HEADS = (
    *("attackers", "episodes/s", "per CPU s", "voids", "refused", "harmed"),
    *("`x = 1` median", "p95", "newcomers", "server MB", "all MB", "before MB", "after MB"),
    *("log kB", "lives", "rounds"),
)


def markdown(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def figures(rows: Sequence[PhaseRow]) -> str:
    """Table of the figures of all phases."""
    return markdown(_HEADS, [_cells(row) for row in rows])


def _cells(row: PhaseRow) -> list[str]:
    return [
        row.attackers,
        f"{row.per_s:.1f}",
        f"{row.per_cpu_s:.2f}",
        *(str(n) for n in (sum(row.voids.values()), row.refused, row.harmed)),
        *(f"{seconds:.3f}" for seconds in (row.median_s, row.p95_s)),
        f"{row.newcomers}/{row.newcomers + row.turned_away}",
        *(f"{mb:.0f}" for mb in (row.server_mb, row.total_mb, row.before_mb, row.after_mb)),
        f"{row.log_bytes / 1000:.0f}",
        "yes" if row.lived else "**no**",
        str(row.rounds),
    ]


def verdicts(rows: Sequence[PhaseRow]) -> tuple[str, bool]:
    """Table of the promises with the phases that broke them; whether all held."""
    kept = [(row.attackers, promises(_beside(rows, at), row)) for at, row in enumerate(rows)]
    lines = []
    for promise in kept[0][1]:
        broken = [name for name, held in kept if not held[promise]]
        lines.append((promise, "**broken**: " + ", ".join(broken) if broken else "held"))
    return markdown(("promise", "result"), lines), all(line[1] == "held" for line in lines)


def _beside(rows: Sequence[PhaseRow], at: int) -> PhaseRow:
    """The quiet phases next to this one together, because the speed of a machine changes."""
    quiet = [row for row in rows[max(0, at - 1) : at + 2] if row.attackers == QUIET]
    return replace(
        quiet[0],
        seconds=sum(row.seconds for row in quiet),
        episodes=sum(row.episodes for row in quiet),
        cpu_s=sum(row.cpu_s for row in quiet),
        after_mb=statistics.fmean(row.after_mb for row in quiet),
    )


def causes(rows: Sequence[PhaseRow]) -> str:
    """Lines with the causes of honest voids."""
    return "\n".join(
        f"{row.attackers}: {count} x {cause}" for row in rows for cause, count in row.voids.items()
    )


@dataclass(frozen=True)
class FindingRow:
    """Effects of one single attack; memory in MB, times in seconds."""

    number: str
    sent: str
    did: str
    """Answer of the server."""
    as_it_must: bool
    """Whether that answer gives the attacker nothing."""
    lived: bool
    more_mb: float
    """Largest memory of server and sandbox, above that before the attack."""
    allowed_mb: float
    kept_mb: float
    """Memory some seconds after the attack, while its connections are still open."""
    gap_s: float
    """Longest wait of a session that was open before the attack."""
    paused_s: float
    """Longest time in which the measuring process itself did not run; waits contain it."""
    newcomers_s: list[float]
    """Wait of each new client that was served."""
    turned_away: dict[str, int]
    voids: dict[str, int]
    """Lost episodes of the open session."""
    log_bytes: int

    @property
    def held(self) -> bool:
        """Whether the attack had no effect on anybody else."""
        return (
            self.as_it_must
            and self.lived
            and not self.voids
            and not self.turned_away
            and max(self.gap_s, *self.newcomers_s, 0.0) < GAP_S
            and self.more_mb < self.allowed_mb
            and self.log_bytes < LOG_BYTES
        )


def finding_table(rows: Sequence[FindingRow]) -> str:
    """Table of single attacks."""
    heads = ("", "sent", "answer", "lives", "MB more", "MB kept", "longest wait, s")
    return markdown(
        (*heads, "new clients served", "voids", "log kB", "held"),
        [
            (
                row.number,
                row.sent,
                row.did.replace("|", "\\|").replace("\n", " "),
                "yes" if row.lived else "**killed**",
                *(f"{mb:.0f}" for mb in (row.more_mb, row.kept_mb)),
                f"{row.gap_s:.1f}",
                f"{len(row.newcomers_s)}/{len(row.newcomers_s) + sum(row.turned_away.values())}",
                sum(row.voids.values()),
                f"{row.log_bytes / 1000:.0f}",
                "yes" if row.held else "**no**",
            )
            for row in rows
        ],
    )
