"""Result of a chain run: stage times, gate, evaluation, registered version, promotion.

It reads the reports that the stages wrote, and computes nothing itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tasks.tracking.runs import result_metrics

REPORTS = Path("reports")
LAST = Path(".run/last.json")
MARKS = {
    "done": "[green]✓[/]",
    "cached": "[blue]=[/]",
    "refused": "[red]✗[/]",
    "failed": "[red]✗[/]",
    "interrupted": "[yellow]![/]",
}
COMPARED = {
    "reward": "reward, sampled",
    "primary_objective": "primary objective, sampled",
    "f1_greedy": "F1, greedy",
    "f1_sampled": "F1, sampled",
}
"""Comparisons of reports/evaluation.json with their labels in the table."""


@dataclass(frozen=True)
class StageRow:
    """Outcome of one stage: done, cached (kept by DVC), refused, failed or interrupted."""

    stage: str
    outcome: str
    seconds: float


@dataclass(frozen=True)
class ChainFigures:
    """The final figures of a run."""

    rows: list[StageRow]
    lines: list[tuple[str, str]]
    """Name and figure, ready to print."""
    headline: str
    metrics: dict[str, float] = field(default_factory=dict)


def line(rows: Sequence[StageRow]) -> str:
    """The stages so far, as one line of rich markup."""
    seconds = {
        row.stage: "kept" if row.outcome == "cached" else f"{row.seconds:.0f} s" for row in rows
    }
    return "  ".join(f"{MARKS[row.outcome]} {row.stage} {seconds[row.stage]}" for row in rows)


def read_figures(rows: Sequence[StageRow], url: str) -> ChainFigures:
    """Figures of the current reports; also written to `LAST` for `read_last`.

    Args:
        rows: the stages of the run.
        url: address of the run in MLflow.
    """
    gate, evaluation = _report("gate"), _report("evaluation")
    registered = _report("registered")
    lines = []
    if gate:
        lines.append(("gate", str(gate["advice"])))
    metrics: dict[str, float] = {}
    if evaluation:
        metrics |= result_metrics(evaluation["after"])
        metrics["result/reward_before"] = evaluation["reward"]["before"]
        metrics["result/reward_gain"] = evaluation["reward"]["difference"]
    for name, label in COMPARED.items():
        if found := evaluation.get(name):
            low, high = found["ci95"]
            figure = (
                f"{found['before']:.3f} -> {found['after']:.3f}  "
                f"({found['difference']:+.3f}, 95 % interval {low:+.3f} to {high:+.3f})"
            )
            lines.append((label, figure))
    headline = str(evaluation.get("improvement", "no evaluation"))
    lines.append(("result", f"{headline} (reward, n = {evaluation.get('n', 0)} problems)"))
    if registered:
        state = "new" if registered["new"] else "the weights are unchanged"
        aliases = ", ".join(registered["aliases"]) or "no alias"
        version = f"{registered['name']} version {registered['version']}"
        lines.append(("registered", f"{version} ({state}; {aliases})"))
    if promotion := _report("promotion"):
        lines.append(("champion", promotion["said"]))
    lines.append(("seconds", f"{sum(row.seconds for row in rows):.0f}"))
    lines.append(("see", "reports/index.html, reports/plots/"))
    lines.append(("in MLflow, after `make up`", url))
    metrics["result/minutes"] = sum(row.seconds for row in rows) / 60
    result = ChainFigures(list(rows), lines, headline, metrics)
    LAST.parent.mkdir(exist_ok=True)
    LAST.write_text(json.dumps(asdict(result)), encoding="utf-8")
    return result


def read_last() -> ChainFigures:
    """The last result of `read_figures`, in this or another process."""
    fields = json.loads(LAST.read_text(encoding="utf-8"))
    rows = [StageRow(**row) for row in fields["rows"]]
    lines = [(name, figure) for name, figure in fields["lines"]]
    return ChainFigures(rows, lines, fields["headline"], fields["metrics"])


def text(result: ChainFigures) -> str:
    """The result for the terminal: lines that it wraps itself, so that an address stays whole."""
    return "\nResult of this run\n" + "\n".join(f"  {name}: {line}" for name, line in result.lines)


def markdown(result: ChainFigures) -> str:
    """The result as Markdown for Prefect's page."""
    stages = "\n".join(
        f"| {row.stage} | {row.outcome} | {row.seconds:.0f} |" for row in result.rows
    )
    figures = "\n".join(f"| {name} | {figure} |" for name, figure in result.lines)
    return (
        f"## {result.headline}\n\n| | |\n|---|---|\n{figures}\n\n"
        f"| stage | outcome | seconds |\n|---|---|---|\n{stages}\n"
    )


def _report(name: str) -> dict[str, Any]:
    try:
        report = json.loads((REPORTS / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}
