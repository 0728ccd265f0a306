"""Results of cells that no clock may change: the setting `env.deterministic`.

CPU time differs between two runs of the same code. So a limit stops a cell at different moments,
after different work. Here a cell that reaches the limit leaves nothing, and a cell far below it
costs nothing. A cell between makes the episode void. Pure; `tree.py` calls it.
"""

from __future__ import annotations

from dataclasses import replace

from env.server.sandbox import CellDone

_SURE = 0.5
"""Share of the limit below which a cell ends in every run."""

CALLED = "a cell was stopped by its CPU limit after sub-calls, which no second run would repeat"
NEAR = "a cell ended too near its CPU limit for a run that can be repeated"


def repeatable_cell(cell: CellDone, limit_s: float, called: bool) -> CellDone | str:
    """The cell as every run would return it, or the reason why the episode is void.

    Args:
        cell: the cell as it ended; a cell that its wall limit stopped is void anyway.
        limit_s: CPU seconds of a cell.
        called: whether the cell made sub-calls.

    Returns:
        The cell with a `cpu_s` that is counted instead of measured: the whole limit if the cell
        reached it, else 0. Or the reason.
    """
    if cell.error == "cpu" or cell.cpu_s >= limit_s:
        if called:
            return CALLED
        return CellDone(stdout="", error="cpu", variables_lost=True, cpu_s=limit_s)
    if cell.error != "wall" and cell.cpu_s > _SURE * limit_s:
        return NEAR
    return replace(cell, cpu_s=0.0)
