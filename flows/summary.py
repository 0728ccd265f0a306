"""Result of a chain run: stage times, gate, evaluation, registered version, promotion.

It reads the reports that the stages wrote, and computes nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tasks import paths
from tasks.io import read_report, write_text
from tasks.reporting.cards import HEADLINES
from tasks.tracking.runs import result_metrics

LAST = paths.RUN / "last.txt"
"""The last result, for the terminal."""
MARKS = {
    "done": "[green]✓[/]",
    "cached": "[blue]=[/]",
    "refused": "[red]✗[/]",
    "failed": "[red]✗[/]",
    "interrupted": "[yellow]![/]",
}


@dataclass(frozen=True)
class StageRow:
    """Outcome of one stage: done, cached (kept by DVC), refused, failed or interrupted."""

    stage: str
    outcome: str
    seconds: float


@dataclass(frozen=True)
class ChainFigures:
    """The final figures of a run."""

    rows: Sequence[StageRow]
    lines: list[tuple[str, str]]
    """Name and figure, ready to print."""
    headline: str
    metrics: dict[str, float] = field(default_factory=dict)


def line(row: StageRow) -> str:
    """A finished stage as one line of rich markup."""
    took = "kept" if row.outcome == "cached" else f"{row.seconds:.0f} s"
    return f"{MARKS[row.outcome]} {row.stage} {took}"


def read_figures(rows: Sequence[StageRow], url: str) -> ChainFigures:
    """Figures of the current reports; `LAST` has them as text.

    Args:
        rows: all stages of the run.
        url: address of the run in MLflow.

    Raises:
        StageError: a report is missing.
    """
    gate = read_report(paths.GATE, "gate")
    evaluation = read_report(paths.EVALUATION, "evaluate")
    registered = read_report(paths.REGISTERED, "register")
    promotion = read_report(paths.PROMOTION, "promote")
    bare = [("bare model", str(gate["zero_shot"]["advice"]))] if gate.get("zero_shot") else []
    lines = [*bare, ("gate", str(gate["advice"]))]
    for name, label in HEADLINES.items():
        change = evaluation[name]
        low, high = change["ci95"]
        figure = (
            f"{change['before']:.3f} -> {change['after']:.3f}  "
            f"({change['difference']:+.3f}, 95 % interval {low:+.3f} to {high:+.3f})"
        )
        lines.append((label, figure))
    headline, seconds = str(evaluation["improvement"]), sum(row.seconds for row in rows)
    state = "new" if registered["new"] else "the weights are unchanged"
    aliases = ", ".join(registered["aliases"]) or "no alias"
    version = f"{registered['name']} version {registered['version']}"
    place = f"{url.partition('#')[0]}#/models/{registered['name']}/versions/{registered['version']}"
    lines += [
        ("result", f"{headline} (reward, n = {evaluation['n']} problems)"),
        ("registered", f"{version} ({state}; {aliases})"),
        ("champion", promotion["said"]),
        ("seconds", f"{seconds:.0f}"),
        ("see", "reports/index.html, reports/plots/"),
        ("in MLflow, after `make up`", url),
        ("the version there", place),
    ]
    metrics = result_metrics(evaluation["after"]) | {
        "result/reward_before": evaluation["reward"]["before"],
        "result/reward_gain": evaluation["reward"]["difference"],
        "result/minutes": seconds / 60,
    }
    write_text(LAST, text(lines))
    return ChainFigures(rows, lines, headline, metrics)


def read_curves() -> list[tuple[int, dict[str, float]]]:
    """Each training step with its rewards."""
    import pandas as pd

    rows = pd.read_parquet(paths.TRAIN_ROWS).set_index("step").filter(regex="^reward/")
    return [(int(step), row.dropna().to_dict()) for step, row in rows.iterrows()]


def text(lines: Sequence[tuple[str, str]]) -> str:
    """The result for the terminal: lines that it wraps itself, so that an address stays whole."""
    return "\nResult of this run\n" + "\n".join(f"  {name}: {figure}" for name, figure in lines)


def markdown(result: ChainFigures) -> str:
    """The result as Markdown for Prefect's page."""
    stages = "\n".join(f"| {r.stage} | {r.outcome} | {r.seconds:.0f} |" for r in result.rows)
    figures = "\n".join(f"| {name} | {figure} |" for name, figure in result.lines)
    return (
        f"## {result.headline}\n\n| | |\n|---|---|\n{figures}\n\n"
        f"| stage | outcome | seconds |\n|---|---|---|\n{stages}\n"
    )
