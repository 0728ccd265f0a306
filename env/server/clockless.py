"""What is left of a cell when no clock may decide: the setting `env.deterministic`.

CPU time is not the same in two runs of the same code, so neither is the moment at which a limit
on it stops a cell, nor what the cell had done by then. Here a cell that reaches the limit leaves
nothing, one that stays far below it is free, and what lies between makes the episode void.
Pure; `tree.py` asks.
"""

from __future__ import annotations

from dataclasses import replace

from env.server.sandbox import CellDone

_SURE = 0.5
"""Share of the limit up to which a cell would have ended in every run."""

CALLED = "a cell was stopped by its CPU limit after sub-calls, which no second run would repeat"
NEAR = "a cell ended too near its CPU limit for a run that can be repeated"


def clockless(cell: CellDone, limit_s: float, called: bool) -> CellDone | str:
    """The cell as every run would have it, or why there is no such thing.

    Args:
        cell: as it ended; one that its wall limit stopped is left as it is, and is void anyway.
        limit_s: CPU seconds of a cell.
        called: it made sub-calls.

    Returns:
        The cell, its `cpu_s` counted instead of measured: the whole limit when it was reached,
        else 0. Or the reason for which the episode is void.
    """
    if cell.error == "cpu" or cell.cpu_s >= limit_s:
        if called:
            return CALLED
        return CellDone(stdout="", error="cpu", variables_lost=True, cpu_s=limit_s)
    if cell.error != "wall" and cell.cpu_s > _SURE * limit_s:
        return NEAR
    return replace(cell, cpu_s=0.0)
