"""Figure of the benchmark: scores against length, without and with labels, and against cost."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from tasks.oolong.play import OolongPlan
from tasks.oolong.report import Scores, Series, is_baseline, size
from tasks.reporting.figures import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, figure_style

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#56B4E9", "#E69F00", INK)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", "--", ":", "-.")


def draw(plan: OolongPlan, scores: Scores) -> Figure:
    """Panels of the scores for each value of labels, and of score and cost without labels.

    Bands are 95 % intervals. A hollow marker is a score of prompts that were cut. Baselines are
    grey; they cost nothing and are not in the last panel.
    """
    names = list(dict.fromkeys(name for series in scores.values() for name in series))
    models = [name for name in names if not is_baseline(name)]
    grey = [name for name in names if is_baseline(name)]
    with figure_style():
        figure = Figure(figsize=(5.2 * (len(scores) + 1), 5.6))
        panels = figure.subplots(1, len(scores) + 1, sharey=True, squeeze=False)[0]
        for axes, (labels, of_labels) in zip(panels, scores.items(), strict=False):
            for name, series in of_labels.items():
                if is_baseline(name):
                    style = _DASHES[grey.index(name) % len(_DASHES)]
                    heights = [cell.score.mean for cell in series.values()]
                    axes.plot(list(series), heights, style, color=GREY, label=name, linewidth=1.6)
                else:
                    _line(axes, name, models.index(name), series, list(series))
            axes.set_xscale("log", base=2)
            axes.set_xticks(list(plan.lengths), [size(length) for length in plan.lengths])
            if plan.window is not None:
                axes.axvline(plan.window, color=INK, linestyle=":", linewidth=1.2)
                axes.text(plan.window, 1.01, " window", fontsize=9, va="bottom")
            axes.set(xlabel="Tokens of the context")
            axes.set_title("With labels" if labels else "Without labels")
        first = next(iter(scores.values()))
        for name in models:
            if name in first:
                costs = [cell.tokens for cell in first[name].values()]
                _line(panels[-1], name, models.index(name), first[name], costs)
        panels[-1].set_xscale("log")
        panels[-1].set(xlabel="Tokens read and written for a problem")
        panels[-1].set_title(f"{'With' if next(iter(scores)) else 'Without'} labels, against cost")
        panels[0].set(ylabel="Mean score", ylim=(-0.02, 1.06))
        for axes in panels[:-1]:
            axes.xaxis.set_minor_locator(NullLocator())
        handles, texts = panels[0].get_legend_handles_labels()
        figure.legend(handles, texts, loc="outside lower center", ncols=4)
        return figure


def _line(axes: Axes, name: str, number: int, series: Series, places: list[float]) -> None:
    """Line with its band; hollow markers where the prompts were cut."""
    colour, marker = _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)]
    cells = list(series.values())
    heights = [cell.score.mean for cell in cells]
    axes.plot(places, heights, color=colour, label=name, marker=marker, markersize=6)
    lows, highs = [cell.score.low for cell in cells], [cell.score.high for cell in cells]
    axes.fill_between(places, lows, highs, color=colour, alpha=0.15, linewidth=0)
    hollow = [(x, y) for x, y, cell in zip(places, heights, cells, strict=True) if cell.cut]
    if hollow:
        axes.plot(*zip(*hollow, strict=True), marker, color=colour, markerfacecolor="white")
