"""Figure and tables of the comparison, from its results."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agent.evaluation.statistics import Bootstrap, Interval
from tasks.reporting.figures import BLUE, GREY, INK, ORANGE, figure_style

Row = Mapping[str, Any]
LINES = {
    "with children": (BLUE, "o", "-"),
    "without, reading (the best kind at each size)": (ORANGE, "s", "--"),
    "without, reciting a field's names from memory": (GREY, "^", ":"),
}
WITHOUT = ("stuffed", "alone", "alone, forgetful")
"""Arms of one agent with the window of the recursive one."""
RECURSIVE_MANY_NAMES = "recursive, many names"
WITHOUT_MANY_NAMES = ("alone, many names", "alone, forgetful, many names")
"""Arms of one agent with more names than the window holds."""
RESULTS = Path(__file__).with_name("results.jsonl.gz")
"""Committed results."""
BOOTSTRAP = Bootstrap(resamples=10_000, seed=0)


def read_results(path: Path) -> list[Row]:
    """Results in a file, one JSON object a line."""
    with gzip.open(path, "rt") as stream:
        return [json.loads(line) for line in stream]


def chosen(rows: Sequence[Row], what: str = "trained") -> dict[tuple[str, int], Row]:
    """Result of each arm and seed at the rate with the best greedy answers to validation."""
    found: dict[tuple[str, int], Row] = {}
    for row in rows:
        if row["what"] != what:
            continue
        key = (row["arm"], row["seed"])
        if key not in found or _greedy(row) > _greedy(found[key]):
            found[key] = row
    return found


def demonstrated(rows: Sequence[Row], arm: str, seed: int) -> list[Row]:
    """Bases of a seed that were shown one plan of an arm alone."""
    return [
        row
        for row in rows
        if row["what"] == "demonstrated" and row["arm"] == arm and row["seed"] == seed
    ]


def at(row: Row, papers: int) -> list[Row]:
    """Answers of a result to problems with so many papers."""
    return [answer for answer in row["answers"] if answer["papers"] == papers]


def mean_f1(row: Row, papers: int) -> Interval:
    """Mean F1 with its interval over collections."""
    rows = at(row, papers)
    return BOOTSTRAP.mean([one["f1"] for one in rows], [one["collection"] for one in rows])


def difference(one: Row, other: Row, papers: int) -> Interval:
    """Difference of F1 on the problems that both answered."""
    theirs = {answer["collection"]: answer["f1"] for answer in at(other, papers)}
    pairs = [(a["collection"], a["f1"]) for a in at(one, papers) if a["collection"] in theirs]
    return BOOTSTRAP.mean([f1 - theirs[name] for name, f1 in pairs], [name for name, _ in pairs])


def draw(rows: Sequence[Row], sizes: Sequence[int]) -> Figure:
    """Plot F1 against the number of papers: the mean of the seeds, and where they lie."""
    found = chosen(rows)
    kinds: list[dict[int, list[Row]]] = [defaultdict(list), defaultdict(list), defaultdict(list)]
    for (arm, seed), row in sorted(found.items()):
        if arm == "recursive":
            kinds[0][seed].append(row)
        elif arm in WITHOUT:
            kinds[1][seed].append(row)
            for base in demonstrated(rows, arm, seed):
                kinds[2 if base["plan"] == "recite" else 1][seed].append(base)
    with figure_style():
        figure = Figure(figsize=(9.6, 5.6))
        axes: Axes = figure.subplots()
        for (label, (colour, marker, line)), seeds in zip(LINES.items(), kinds, strict=True):
            if not seeds:
                continue
            curves = np.array(
                [
                    [max(mean_f1(row, size).mean for row in shown) for size in sizes]
                    for shown in seeds.values()
                ]
            )
            axes.fill_between(sizes, curves.min(0), curves.max(0), color=colour, alpha=0.15, lw=0)
            axes.plot(sizes, curves.mean(0), color=colour, ls=line, marker=marker, label=label)
        axes.axvspan(min(sizes), 16, color=INK, alpha=0.04)
        axes.text(15.6, 0.02, "trained up to here", ha="right", fontsize=9, color=INK)
        axes.set(ylabel="F1 of the greedy answer", ylim=(0, 1), xticks=sizes)
        axes.set_xlabel("Papers of a problem", loc="left")  # commits are on the right
        axes.set_title("An agent that calls itself, and agents that don't")
        axes.legend(fontsize=9, loc="lower left", bbox_to_anchor=(0.01, 0.06))
        drawn = [row for seeds in kinds for shown in seeds.values() for row in shown]
        figure.text(0.99, 0.01, _origin(drawn), ha="right", fontsize=8, color=GREY)
    return figure


def _origin(rows: Collection[Row]) -> str:
    commits = sorted({str(row["commit"])[:7] for row in rows})
    dates = [str(row["date"]) for row in rows]
    return f"commit {', '.join(commits)}; {max(dates, default='')}"


def tables(rows: Sequence[Row], sizes: Sequence[int]) -> str:
    """All tables as Markdown; those with many names are the last ones."""
    many = [row for row in rows if row["arm"] in (RECURSIVE_MANY_NAMES, *WITHOUT_MANY_NAMES)]
    rows = [row for row in rows if row not in many]
    found = chosen(rows)
    reading = [row for row in rows if row.get("plan") != "recite"]
    parts = [
        _scores("Trained arms", found.values(), sizes),
        _scores("Bases", [row for row in rows if row["what"] == "base"], sizes),
        _scores("One plan alone", [row for row in rows if row["what"] == "demonstrated"], sizes),
        _scores("Printed fields", chosen(rows, "control").values(), sizes),
        _differences(rows, sizes),
        _differences(reading, sizes, " that reads") if len(reading) < len(rows) else "",
        _costs(found.values(), sizes),
        _budgets(rows),
        _readers(rows),
        _scores("Many names", many, sizes),
        _differences(many, sizes, "", RECURSIVE_MANY_NAMES, WITHOUT_MANY_NAMES),
    ]
    return "\n\n".join(part for part in parts if part)


def _scores(title: str, rows: Any, sizes: Sequence[int]) -> str:
    rows = list(rows)
    if not rows:
        return ""
    lines = [
        f"**{title}**: F1 by papers",
        f"| arm | seed | {' | '.join(map(str, sizes))} |",
        "|---" * (2 + len(sizes)) + "|",
    ]
    for row in rows:
        cells = (_cell(mean_f1(row, size)) for size in sizes)
        lines.append(f"| {_name(row)} | {row['seed']} | {' | '.join(cells)} |")
    return _joined(lines)


def _differences(
    rows: Sequence[Row],
    sizes: Sequence[int],
    kind: str = "",
    recursive: str = "recursive",
    without: Sequence[str] = WITHOUT,
) -> str:
    lines = [
        f"**Recursive minus the best agent with the same window{kind}**, trained or shown its best "
        "plan only; paired by problem",
        f"| seed | {' | '.join(map(str, sizes))} |",
        "|---" * (1 + len(sizes)) + "|",
    ]
    found = chosen(rows)
    for (arm, seed), row in sorted(found.items()):
        others = [found[other, seed] for other in without if (other, seed) in found]
        others += [base for other in without for base in demonstrated(rows, other, seed)]
        if arm != recursive or not others:
            continue
        cells = []
        for size in sizes:
            best = max(others, key=lambda other: mean_f1(other, size).mean)
            cells.append(f"{_cell(difference(row, best, size))} {_name(best)}")
        lines.append(f"| {seed} | {' | '.join(cells)} |")
    return _joined(lines) if len(lines) > 3 else ""


def _costs(rows: Any, sizes: Sequence[int]) -> str:
    lines = [
        "**Costs** of the training, and of the largest problems (tree: 25, 50, 75 and 95 %)",
        "| arm | seed | rate | CPU s | sampled | tree tokens | root tokens | root turns | seen |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        largest = at(row, max(sizes))
        tree = [one["root_tokens"] + one["child_tokens"] for one in largest]
        shares = " / ".join(f"{np.quantile(tree, q):,.0f}" for q in (0.25, 0.5, 0.75, 0.95))
        root = np.median([one["root_tokens"] for one in largest])
        turns = np.median([one["turns"] for one in largest])
        seen = fmean(one["covered"] for one in largest)
        lines.append(
            f"| {row['arm']} | {row['seed']} | {row['rate']:g} | {row['cpu_s']:,} | "
            f"{row['sampled_tokens']:,} | {shares} | {root:,.0f} | {turns:.0f} | {seen:.2f} |"
        )
    return _joined(lines) if len(lines) > 3 else ""


def _budgets(rows: Sequence[Row]) -> str:
    found = [row for row in rows if row["what"] == "budget"]
    lines = [
        "**Budget** as a multiple of the expert's tokens",
        "| arm | seed | budget | F1 | sentences seen |",
    ]
    lines.append("|---|---|---|---|---|")
    for row in found:
        size = row["answers"][0]["papers"]
        seen = fmean(one["covered"] for one in row["answers"])
        cells = (row["arm"], row["seed"], f"{row['budget']:g}", _cell(mean_f1(row, size)))
        lines.append(f"| {' | '.join(map(str, cells))} | {seen:.2f} |")
    return _joined(lines) if found else ""


def _readers(rows: Sequence[Row]) -> str:
    found = [row for row in rows if "readers" in row and row["what"] != "control"]
    lines = [
        '**Readers**: probability of the right field / of "unknown", by kind of name',
        "| policy | seed | taught | in training problems only | in neither |",
        "|---|---|---|---|---|",
    ]
    for row in found:
        kinds = row["readers"].values()
        cells = " | ".join(f"{one['right']:.2f} / {one['unknown']:.2f}" for one in kinds)
        rate = f" at {row['rate']:g}" if "rate" in row else ""
        kind = f"inheritance {row['arm']}" if row["what"] == "inheritance" else row["arm"]
        name = "base" if row["what"] == "base" else f"{kind}{rate}"
        lines.append(f"| {name} | {row['seed']} | {cells} |")
    return _joined(lines) if found else ""


def _name(row: Row) -> str:
    """Arm, and the plan of a base that was shown one only."""
    return f"{row['arm']}: {row['plan']}" if "plan" in row else str(row["arm"])


def _joined(lines: Sequence[str]) -> str:
    title, *table = lines
    return f"{title}:\n\n" + "\n".join(table)


def _cell(found: Interval) -> str:
    return f"{found.mean:.2f} [{found.low:.2f}, {found.high:.2f}]"


def _greedy(row: Row) -> float:
    return float(row["validation"]["greedy"]) if "validation" in row else 0.0
