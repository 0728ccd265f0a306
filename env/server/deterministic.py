"""Results of cells that no clock may change: the setting `env.deterministic`.

CPU time differs between two runs of the same code. So a limit stops a cell at different moments,
after different work. Here a cell that reaches the limit leaves nothing, and a cell far below it
costs nothing. A cell between makes the episode void, and so does a REPL that was ended to make room
for neighbours. Pure; `tree.py` calls it.
"""

from __future__ import annotations

from dataclasses import replace

from env.models import CALLED, CROWDED, NEAR
from env.server.sandbox import CellDone, CellError

_SURE = 0.5
"""Share of the limit below which a cell ends in every run."""


def repeatable_cell(cell: CellDone, limit_s: float, called: bool) -> CellDone | str:
    """The cell as every run would return it, or the reason why the episode is void.

    Args:
        cell: the cell as it ended; a starved one is void anyway, and counts decide about calls.
        limit_s: CPU seconds of a cell.
        called: whether the cell made sub-calls.

    Returns:
        The cell with a `cpu_s` that is counted instead of measured: the whole limit if the cell
        reached it, else 0. Or the reason.
    """
    if cell.error in ("starved", "calls"):
        return cell
    if cell.error == "evicted":
        return CROWDED
    if cell.error in ("cpu", "wall") or cell.cpu_s >= limit_s:
        if called:
            return CALLED
        error: CellError = "wall" if cell.error == "wall" else "cpu"
        return CellDone(stdout="", error=error, variables_lost=True, cpu_s=limit_s)
    if cell.cpu_s > _SURE * limit_s:
        return NEAR
    return replace(cell, cpu_s=0.0)
