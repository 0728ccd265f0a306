"""The two figures of a run, drawn from plain tables without file access.

The colours are Okabe and Ito's palette, which readers with any colour vision can distinguish; no
figure relies on colour alone. `tasks/plots.py` reads the inputs and saves the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rewards.settings import reward_metric

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
GREY, INK, FAINT = "#9AA3AD", "#24292F", "#D8DEE4"
BANDS = ("#F6F8FA", "#E9EEF4", "#DCE4EC", "#CFDAE4")
SMOOTH = 5
"""Steps of the moving average."""
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 2.2,
    "lines.solid_capstyle": "round",
    "figure.constrained_layout.use": True,
}


def reward_curve(
    train: pd.DataFrame, baseline: Mapping[str, Any], zero_shot: Mapping[str, Any]
) -> Figure:
    """Reward and primary objective of the training episodes.

    The baseline is that of the played level: problems of other levels are easier or harder. The
    bare model has played the easiest level alone.

    Args:
        train: one row per step: step, level, reward/overall, reward/primary.
        baseline: the content of reports/baseline.json.
        zero_shot: the content of reports/zeroshot.json.
    """
    with figure_style():
        figure = Figure(figsize=(9.6, 5.2))
        axes = figure.subplots()
        _shade_levels(axes, train)
        for score, label, colour in (
            ("reward", "trained reward", BLUE),
            ("primary_objective", "primary objective", ORANGE),
        ):
            column = reward_metric(score)
            axes.plot(train["step"], train[column], color=colour, alpha=0.28, linewidth=1.2)
            smoothed = train[column].rolling(SMOOTH, min_periods=1).mean()
            axes.plot(train["step"], smoothed, color=colour, label=label)
        _draw_baseline(axes, train, baseline)
        if zero_shot.get("played"):
            label = f"bare model, {zero_shot['level']}"
            axes.axhline(zero_shot["reward_mean"], color=GREY, linestyle="-.", label=label)
        _steps_axis(axes, train)
        axes.set(xlabel="Training Step", ylabel="Reward", ylim=(0, 1.06))
        axes.set_title("Reward while the policy trains")
        figure.legend(loc="outside lower center", ncols=3)
        return figure


def before_after(report: Mapping[str, Any]) -> Figure:
    """Both models on the same held-out problems.

    Args:
        report: the content of reports/evaluation.json.
    """
    both = report["before"], report["after"]
    whole = [
        (label, [_estimate(part, name) for part in both])
        for label, name in (
            ("Reward\n(sampled)", "reward_mean"),
            ("F1\n(sampled)", "f1_sampled"),
            ("F1\n(greedy)", "f1_greedy"),
        )
    ]
    with figure_style():
        figure = Figure(figsize=(7, 5.2))
        axes = figure.subplots()
        _pairs_of_bars(axes, whole)
        axes.set(title="All problems", ylabel="Mean over held-out episodes")
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
        low, high = report["reward"]["ci95"]
        figure.suptitle(
            f"{report['n']} unseen problems, same seeds: reward "
            f"{report['reward']['difference']:+.2f} (95 % interval {low:+.2f} to {high:+.2f})"
            f"{_voids_note(report)}",
            x=0.01,
            ha="left",
            fontsize=12,
        )
        return figure


def figure_style() -> AbstractContextManager[None]:
    """Context with the style of all figures."""
    return rc_context(cast(Any, STYLE))


def _steps_axis(axes: Axes, train: pd.DataFrame) -> None:
    first, last = int(train["step"].min()), int(train["step"].max())
    axes.set_xlim(first - 0.5, last + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=9))


def _stretches(train: pd.DataFrame) -> list[tuple[str, float, float]]:
    """(level, start, end) of each run of steps at one level, extended by half a step."""
    runs = (train["level"] != train["level"].shift()).cumsum()
    return [
        (str(part["level"].iloc[0]), part["step"].iloc[0] - 0.5, part["step"].iloc[-1] + 0.5)
        for _, part in train.groupby(runs)
    ]


def _shade_levels(axes: Axes, train: pd.DataFrame) -> None:
    """Draw a band for each run of steps at one level, with its name at the top."""
    stretches = _stretches(train)
    order = list(dict.fromkeys(level for level, _, _ in stretches))
    for level, start, end in stretches:
        colour = BANDS[order.index(level) % len(BANDS)]
        axes.axvspan(start, end, color=colour, linewidth=0, zorder=0)
        narrow = _narrow(train, start, end)
        place = start + 0.002 * len(train) if narrow else (start + end) / 2
        axes.text(place, 1.035, level, ha="left" if narrow else "center", va="center", fontsize=9.5)


def _narrow(train: pd.DataFrame, start: float, end: float) -> bool:
    """Whether a band is too narrow for centred text, which then starts at its left edge."""
    return end - start < 0.06 * len(train)


def _draw_baseline(axes: Axes, train: pd.DataFrame, baseline: Mapping[str, Any]) -> None:
    """Draw the reward before GRPO at the level of each band, dotted and as a number."""
    x: list[float] = []
    y: list[float] = []
    for level, start, end in _stretches(train):
        mean = baseline.get("levels", {}).get(level, baseline)["reward_mean"]
        x += [start, end, end]
        y += [mean, mean, float("nan")]  # a gap: no line from one level to the next
        narrow = _narrow(train, start, end)
        axes.annotate(
            f"{mean:.2f}",
            (start if narrow else end, mean),
            xytext=(4 if narrow else -4, -4),
            textcoords="offset points",
            ha="left" if narrow else "right",
            va="top",
            fontsize=10,
        )
    axes.plot(x, y, color=INK, linestyle=":", linewidth=2, label="before GRPO")


def _voids_note(report: Mapping[str, Any]) -> str:
    """A second line of the title if episodes are void, else empty."""
    before, after = (sum(report[model]["voids"].values()) for model in ("before", "after"))
    if not before + after:
        return ""
    return (
        f"\nvoid episodes: {before} before, {after} after "
        f"({report['voids_as_zero']} of these count as 0)"
    )


def _estimate(part: Mapping[str, Any], name: str) -> tuple[float, float, float]:
    """(mean, low, high); a mean of None (all episodes void) is drawn as 0."""
    low, high = part[f"{name}_ci95"] or (0.0, 0.0)
    return part[name] or 0.0, low, high


def _pairs_of_bars(
    axes: Axes, groups: Sequence[tuple[str, Sequence[tuple[float, float, float]]]]
) -> None:
    """Draw a grey and a blue bar per group, with 95 % intervals and the means as text."""
    width = 0.38
    for index, (label, colour, hatch) in enumerate(
        (("before GRPO", GREY, "///"), ("after GRPO", BLUE, None))
    ):
        mean, low, high = np.transpose([estimates[index] for _, estimates in groups])
        bars = axes.bar(
            [place + (index - 0.5) * width for place in range(len(groups))],
            mean,
            width * 0.94,
            yerr=np.clip([mean - low, high - mean], 0, None),
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0,
            error_kw={"ecolor": INK, "elinewidth": 1.4, "capsize": 4},
            label=f"{label} (mean and 95 % interval)",
        )
        axes.bar_label(bars, fmt="%.2f", padding=4, fontsize=10)
    axes.set_xticks(range(len(groups)), [label for label, _ in groups])
    axes.set_ylim(0, 1.08)
    axes.grid(visible=False, axis="x")
