"""Figure of the benchmark: scores against length and against cost, without and with labels."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from tasks.oolong.play import OolongPlan
from tasks.oolong.report import OolongCell, Scores, Series, is_baseline, size
from tasks.reporting.figures import BLUE, GREEN, INK, ORANGE, PURPLE, figure_style

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#56B4E9", "#E69F00", INK)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
_BASELINE = "#6E7781"
_NEAR = 0.05
"""Distance, of the score and of the cost's logarithm, within which points share one text."""


def draw(plan: OolongPlan, scores: Scores) -> Figure:
    """A column for each value of labels; scores above against length, below against cost.

    Bands are 95 % intervals. A hollow marker is a score of prompts that were cut. Later lines are
    thinner, so that equal scores show. Baselines are grey and have no cost.
    """
    names = list(dict.fromkeys(name for series in scores.values() for name in series))
    models = [name for name in names if not is_baseline(name)]
    grey = [name for name in names if is_baseline(name)]
    with figure_style():
        figure = Figure(figsize=(6.2 * len(scores), 8.4))
        panels = figure.subplots(2, len(scores), sharex="row", sharey=True, squeeze=False)
        for above, below, (labels, of_labels) in zip(*panels, scores.items(), strict=True):
            for number, name in enumerate(models):
                if series := of_labels.get(name):
                    style = _Style(number, len(models))
                    style.line(above, name, series, list(series))
                    style.line(below, name, series, [cell.tokens for cell in series.values()])
                    _name_ends(below, series)
            for name, series in of_labels.items():
                if is_baseline(name):
                    dashes = _DASHES[grey.index(name) % len(_DASHES)]
                    heights = [cell.score.mean for cell in series.values()]
                    look: dict[str, Any] = {"color": _BASELINE, "linestyle": dashes}
                    above.plot(list(series), heights, label=name, zorder=3, linewidth=1.4, **look)
            above.set_xscale("log", base=2)
            above.set_xticks(list(plan.lengths), [size(length) for length in plan.lengths])
            above.xaxis.set_minor_locator(NullLocator())
            if plan.window is not None:
                above.axvline(plan.window, color=INK, linestyle=":", linewidth=1.2)
                above.text(plan.window, 1.06, " window", fontsize=9, va="bottom")
            above.set(xlabel="Tokens of the context")
            above.set_title(
                "With labels: code counts" if labels else "Without labels: a reader counts"
            )
            below.set_xscale("log")
            below.margins(x=0.09)
            below.set(xlabel="Tokens read and written for a problem")
        for axes in panels[:, 0]:
            axes.set(ylabel="Mean score", ylim=(-0.02, 1.14), yticks=[0, 0.2, 0.4, 0.6, 0.8, 1])
        lines = {line.get_label(): line for axes in panels[0] for line in axes.get_lines()}
        handles = [lines[name] for name in names]
        figure.legend(handles, names, loc="outside lower center", ncols=2 * len(scores))
        return figure


class _Style:
    """Colour, marker and widths of a model's line.

    Args:
        number: of the model.
        count: of all models.
    """

    def __init__(self, number: int, count: int) -> None:
        self._colour = _COLOURS[number % len(_COLOURS)]
        self._marker = _MARKERS[number % len(_MARKERS)]
        self._wider = min(count - 1 - number, 3)

    def line(self, axes: Axes, name: str, series: Series, places: Sequence[float]) -> None:
        """Line with its band; hollow markers where the prompts were cut."""
        cells = list(series.values())
        heights = [cell.score.mean for cell in cells]
        lows, highs = [cell.score.low for cell in cells], [cell.score.high for cell in cells]
        axes.fill_between(places, lows, highs, color=self._colour, alpha=0.15, linewidth=0)
        look: dict[str, Any] = {
            "color": self._colour,
            "marker": self._marker,
            "markersize": 5.5 + 1.9 * self._wider,
        }
        axes.plot(places, heights, label=name, linewidth=1.8 + 1.1 * self._wider, **look)
        hollow = [(x, y) for x, y, cell in zip(places, heights, cells, strict=True) if cell.cut]
        if hollow:
            look |= {"linestyle": "", "markerfacecolor": "white"}
            axes.plot(*zip(*hollow, strict=True), **look)


def _name_ends(axes: Axes, series: Series) -> None:
    """Write the length above the first and beside the last point of a line over cost."""
    (short, first), *_ = series.items()
    *_, (long, last) = series.items()
    texts = [(size(short), first, (0, 8), "center"), (size(long), last, (9, -3), "left")]
    if _near(first, last):
        both = size(short) if short == long else f"{size(short)} to {size(long)}"
        texts = [(both, first, (0, -19), "center")]
    for text, cell, offset, side in texts:
        place = (cell.tokens, cell.score.mean)
        axes.annotate(text, place, offset, textcoords="offset points", fontsize=9, ha=side)


def _near(one: OolongCell, other: OolongCell) -> bool:
    """Whether two points are drawn as one."""
    if min(one.tokens, other.tokens) <= 0:
        return one.tokens == other.tokens
    far = abs(log(one.tokens / other.tokens)) > _NEAR
    return not far and abs(one.score.mean - other.score.mean) <= _NEAR
