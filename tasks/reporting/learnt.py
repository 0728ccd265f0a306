"""The figure of what a training learnt: each decision of its roots, by step.

The decisions are those that demonstrations of moves draw (`agent/demonstrations/moves.py`), read
back from the code that the policy sampled. Drawn from a table, without file access.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from tasks.reporting.figures import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SMOOTH, figure_style

PREFIX = "move/"
_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, INK, GREY)
_MARKERS = "os^Dv*"
_WORDS = 6
"""Further words that are drawn: those that changed most."""
_READS = {"nobody": "nobody", "readers": "readers of a passage", "children": "a child per paper"}


def learnt(train: pd.DataFrame) -> Figure | None:
    """Six panels: parts and further words of the query, where it searches, who reads, and how much.

    Args:
        train: one row per step: step, and the share of roots with each decision.

    Returns:
        None if the table has no decisions.
    """
    names = [column for column in train.columns if column.startswith(PREFIX)]
    if not names:
        return None
    shares = train[names].rolling(SMOOTH, min_periods=1).mean()
    shares.columns = [name.removeprefix(PREFIX) for name in names]
    parts, words, quoted, shown, reads = (
        [name for name in shares.columns if name.startswith(kind)]
        for kind in ("part/", "word/", "quoted/", "shown/", "reads/")
    )
    label = {name: name.rpartition("/")[2] for name in shares.columns}
    moved = (shares[words].iloc[-1] - shares[words].iloc[0]).abs().sort_values(ascending=False)
    rows = {
        "The query has the ...": {name: label[name] for name in parts},
        "... and the further word": {
            name: "another" if name == "word/another" else f"“{label[name]}”"
            for name in moved.index[:_WORDS]
        },
        "It searches ...": {"paper_first": "one paper", "near": "near the best\npassage alone"},
        "Who reads": {name: _READS[label[name]] for name in reads},
        "Passages that readers get": {name: label[name] for name in shown},
        "Passages in the answer, at most": {name: label[name] for name in quoted},
    }
    with figure_style():
        figure = Figure(figsize=(14, 7.4))
        for axes, (title, lines) in zip(figure.subplots(2, 3).flat, rows.items(), strict=True):
            _draw(axes, train["step"], shares, lines)
            axes.set_title(title)
        figure.suptitle("What the sampled code of roots decided", x=0.01, ha="left", fontsize=12)
        figure.supxlabel("Training Step", fontsize=11)
        figure.supylabel("Share of roots", fontsize=11)
        return figure


def _draw(
    axes: Axes, steps: Sequence[int] | pd.Series, shares: pd.DataFrame, lines: dict[str, str]
) -> None:
    for index, (name, label) in enumerate(lines.items()):
        axes.plot(
            steps,
            shares[name],
            label=label,
            color=_COLOURS[index % len(_COLOURS)],
            marker=_MARKERS[index % len(_MARKERS)],
            markevery=max(1, len(shares) // 8),
            markersize=5,
        )
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=10)
