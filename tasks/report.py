"""The HTML report: one page without any outside reference, readable from disk or an artifact.

Images are embedded. Everything that a model or a document wrote is escaped by the template
engine. Neighbour: `tasks/templates/report.html`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES = Path(__file__).parent / "templates"
CAPTIONS = {
    "reward_curve": "Mean reward of the training episodes of each step (faint) and its moving "
    "average. Bands name the level of difficulty that was played: a promotion makes problems "
    "harder, so the curve may drop there.",
    "before_after": "The same held-out problems before and after training, with 95 % bootstrap "
    "intervals by group of problems.",
    "components": "The four components of the reward in training episodes.",
    "curriculum": "The metric that opens the next level, its thresholds, and the level played.",
}
Transcript = dict[str, Any]
Played = tuple[Transcript, dict[str, Any] | None]
"""An episode and its root frame."""


def render(
    evaluation: Mapping[str, Any],
    transcripts: Sequence[Transcript],
    *,
    train: pd.DataFrame,
    baseline: Mapping[str, Any],
    images: Mapping[str, Path],
    pairs: int,
    profile: str,
) -> str:
    """The page as text.

    Args:
        evaluation: the content of reports/evaluation.json.
        transcripts: whole episodes, the same problems for `before` and `after`.
        train: a row a step.
        baseline: the content of reports/baseline.json.
        images: PNG files by name.
        pairs: before/after pairs shown of each difficulty: the first by problem id.
        profile: name of the settings.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["score"] = score
    return environment.get_template("report.html").render(
        evaluation=evaluation,
        baseline=baseline,
        images={name: embedded(path) for name, path in images.items()},
        captions=CAPTIONS,
        pairs=pair(transcripts, pairs),
        per_difficulty=pairs,
        episodes=[(item, tree(item)) for item in transcripts],
        steps=int(train["step"].max()),
        profile=profile,
    )


def score(value: float | None, digits: int = 3) -> str:
    """A number for the page; a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"  # noqa: RUF001


def embedded(path: Path) -> str:
    """A PNG file as a data URL."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def pair(transcripts: Sequence[Transcript], count: int) -> list[tuple[Played, Played]]:
    """(before, after) episodes with their trees: the first `count` ids of each difficulty."""
    by_model: dict[str, dict[str, Transcript]] = {"before": {}, "after": {}}
    for item in transcripts:
        by_model[item["model"]][item["problem_id"]] = item
    both = [key for key in by_model["before"] if key in by_model["after"]]
    levels: dict[str, list[str]] = {}
    for key in both:
        levels.setdefault(by_model["before"][key]["difficulty"], []).append(key)
    return [
        (
            (by_model["before"][key], tree(by_model["before"][key])),
            (by_model["after"][key], tree(by_model["after"][key])),
        )
        for ids in levels.values()
        for key in sorted(ids)[:count]
    ]


def tree(episode: Transcript) -> dict[str, Any] | None:
    """The root frame with `children` nested under each frame; None without any frame.

    A frame whose parent is not in the record hangs from the root.
    """
    nodes = {frame["frame"]: {**frame, "children": []} for frame in episode["frames"]}
    if not nodes:
        return None
    root = min(nodes)
    for number, node in nodes.items():
        if number != root:
            nodes.get(node["parent"], nodes[root])["children"].append(node)
    return nodes[root]
