"""Scores and costs of all models in a folder of results: table, figure and summary."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from agent.evaluation.statistics import Bootstrap, Interval
from tasks.io import replacing, write_json, write_text
from tasks.oolong.arms import TREE
from tasks.oolong.baselines import BASELINES
from tasks.oolong.play import BASELINE_FILE, OolongPlan
from tasks.oolong.results import ScoredAnswer, parsed

_RESAMPLES = 4000


@dataclass(frozen=True)
class OolongCell:
    """Answers of one series to the problems of one length."""

    score: Interval
    """Mean score; the bootstrap resamples whole contexts."""
    tokens: float
    """Tokens for a problem: of an endpoint, those that it counted."""
    seconds: float
    lost: int
    cut: bool
    """Whether prompts hold only the first part of their contexts."""


Series = Mapping[int, OolongCell]
"""Cells of a model by length."""
Scores = Mapping[bool, Mapping[str, Series]]
"""Series by labels and name."""


def is_baseline(name: str) -> bool:
    """Whether a series answers without a model."""
    return name in BASELINES


def size(tokens: int) -> str:
    """Length in words, such as 4k."""
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)


def read_scores(plan: OolongPlan) -> Scores:
    """Scores of every model with answers to the problems of the plan.

    Raises:
        ConfigError: a file in the folder holds other content.
    """
    wanted = {one.problem_id for _, _, asked in plan.cells() for one in asked}
    found: dict[bool, dict[str, dict[int, OolongCell]]] = {shown: {} for shown in plan.labels}
    files = sorted(plan.out.glob("*.jsonl"), key=lambda path: (path.name == BASELINE_FILE, path))
    for path in files:
        head, answers = parsed(path, path.read_text(encoding="utf-8", errors="surrogateescape"))
        cells: dict[tuple[str, bool, int], list[ScoredAnswer]] = defaultdict(list)
        for answer in answers.values():
            cells[answer.cell].append(answer)
        for (arm, labels, length), played in sorted(cells.items()):
            of_plan = [one for one in played if one.problem_id in wanted]
            if any(one.score is not None for one in of_plan):
                name = series_name(str((head or {}).get("model", path.stem)), arm)
                found[labels].setdefault(name, {})[length] = _cell(of_plan, played, plan.seed)
    return found


def series_name(model: str, arm: str) -> str:
    """Name of a series: the model, and how it was asked."""
    if arm == TREE:
        return f"{model}, recursive"
    if arm.startswith("plain-"):
        return f"{model}, plain ({size(int(arm.removeprefix('plain-')))} window)"
    return arm


def write_report(plan: OolongPlan, scores: Scores) -> list[Path]:
    """Write summary, table and figure into the folder; returns their paths."""
    from tasks.oolong.figure import draw

    summary: dict[str, Any] = {
        "with labels" if labels else "without labels": {
            name: {
                size(length): {
                    "score": cell.score.mean,
                    "interval": cell.score.bounds,
                    "n": cell.score.n,
                    "tokens": cell.tokens,
                    "seconds": cell.seconds,
                    "lost": cell.lost,
                    "cut": cell.cut,
                }
                for length, cell in series.items()
            }
            for name, series in of_labels.items()
        }
        for labels, of_labels in scores.items()
    }
    paths = [
        write_json(plan.out / "summary.json", summary),
        write_text(plan.out / "table.md", table(plan, scores)),
    ]
    picture = plan.out / "oolong.png"
    with replacing(picture) as temporary:
        draw(plan, scores).savefig(temporary, dpi=110)
    return [*paths, picture]


def table(plan: OolongPlan, scores: Scores) -> str:
    """Markdown tables: scores with intervals by labels, then tokens for a problem."""
    parts = []
    for labels, of_labels in scores.items():
        title = "with labels" if labels else "without labels"
        parts.append(f"Mean score {title}, with its 95 % interval:\n")
        parts.append(_rows(plan.lengths, of_labels, _score_text))
        models = {name: series for name, series in of_labels.items() if not is_baseline(name)}
        if models:
            parts.append(f"Tokens for a problem {title}:\n")
            parts.append(_rows(plan.lengths, models, lambda cell: f"{cell.tokens:,.0f}"))
    return "\n".join(parts)


def _rows(lengths: Sequence[int], of_labels: Mapping[str, Series], text: Any) -> str:
    lines = ["| length | " + " | ".join(of_labels) + " |", "|---" * (1 + len(of_labels)) + "|"]
    for length in lengths:
        cells = [series.get(length) for series in of_labels.values()]
        texts = [text(cell) if cell else "" for cell in cells]
        lines.append(f"| {size(length)} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def _score_text(cell: OolongCell) -> str:
    marks = (" cut" if cell.cut else "") + (f" {cell.lost} lost" if cell.lost else "")
    low, high = cell.score.bounds
    return f"{cell.score.mean:.2f} ({low:.2f} to {high:.2f}){marks}"


def _cell(answers: Sequence[ScoredAnswer], played: Sequence[ScoredAnswer], seed: int) -> OolongCell:
    """Cell of some answers; `played` are all of the file, with those that no plan names."""
    scored = [one for one in answers if one.score is not None]
    values = [one.score for one in scored if one.score is not None]
    # An answer's bill holds what concurrent answers paid too, so only the sum means something.
    paid = sum(one.prompt_tokens + one.completion_tokens for one in played)
    billed = sum(one.score is not None for one in played)
    return OolongCell(
        score=Bootstrap(_RESAMPLES, seed).mean(values, [one.context_id for one in scored]),
        tokens=paid / billed if paid else fmean(one.tokens for one in scored),
        seconds=fmean(one.seconds for one in scored),
        lost=len(answers) - len(scored),
        cut=any(one.cut for one in scored),
    )
