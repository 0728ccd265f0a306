"""HTML pages: the report of a run, and the problems.

Pages are self-contained, with embedded images, and can be read from disk or an artifact. The
template engine escapes all text of models and documents.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Template

from env.problems.schema import Problem, Span
from tasks.reporting import cards

CAPTIONS = {
    "reward_curve": "Mean reward of the training episodes of each step (faint) and its moving "
    "average. Bands name the level of difficulty that was played: a promotion makes problems "
    "harder, so the curve may drop there.",
    "before_after": "The same held-out problems before and after training, with 95 % bootstrap "
    "intervals by collection of problems.",
    "learnt": "Shares of the roots that took each decision, read from the code that they sampled, "
    "with a moving average. The demonstrations drew these decisions at random, so what rises is "
    "what the reward taught.",
}
SHOWN_REJECTED = 50
"""Most rejected rows that the page of the problems lists."""
AROUND = 240
"""Characters shown before and after a gold passage."""
PAIRS = 3
"""Problems of each difficulty, the first by id, whose episodes before and after are shown."""
PLACES = 3
"""Most alternatives of a fact that are shown."""

Transcript = dict[str, Any]
Played = tuple[Transcript, dict[str, Any] | None]
"""An episode and its root frame."""


def render(
    evaluation: Mapping[str, Any],
    transcripts: Sequence[Transcript],
    *,
    train: pd.DataFrame,
    images: Mapping[str, Path],
    profile: str,
    made: Mapping[str, Any],
) -> str:
    """The page as text.

    Args:
        evaluation: the content of reports/evaluation.json.
        transcripts: whole episodes, the same problems for `before` and `after`.
        train: one row per step.
        images: PNG files by name.
        profile: name of the settings.
        made: `model`, `commit`, `date`, whether the problems are `synthetic`, and `verdicts`.
    """
    return page("report.html").render(
        evaluation=evaluation,
        images={name: embedded(path) for name, path in images.items()},
        captions=CAPTIONS,
        pairs=pair(transcripts),
        per_difficulty=PAIRS,
        episodes=[(item, tree(item)) for item in transcripts],
        steps=int(train["step"].max()),
        profile=profile,
        made=made,
    )


def problems_page(
    report: Mapping[str, Any],
    problems: Sequence[Problem],
    *,
    data: Mapping[str, Any],
    samples: int,
    profile: str,
) -> str:
    """The page of the problems as text.

    Args:
        report: the content of reports/audit.json.
        problems: the played problems.
        data: the content of data/report.json.
        samples: problems shown of each difficulty: the first ones.
        profile: name of the settings.
    """
    levels: dict[str, list[Problem]] = {}
    for problem in problems:
        levels.setdefault(problem.difficulty, []).append(problem)
    shown = [problem for members in levels.values() for problem in members[:samples]]
    return page("problems.html").render(
        report=report,
        data=data,
        rejected=data["rejected_rows"][:SHOWN_REJECTED],
        most=max(map(len, levels.values())),
        per_level=samples,
        samples=[_sample(problem, report) for problem in shown],
        profile=profile,
    )


def page(name: str) -> Template:
    """Template of a page; it escapes all values."""
    environment = cards.templates(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["score"] = score
    return environment.get_template(name)


def _sample(problem: Problem, report: Mapping[str, Any]) -> dict[str, Any]:
    """A problem for the page: its gold in context, and each policy's reward."""
    papers = {paper.paper_id: paper for paper in problem.papers}

    def place(span: Span) -> dict[str, str]:
        paper = papers[span.paper_id]
        before = paper.text[max(0, span.start - AROUND) : span.start]
        after = paper.text[span.end : span.end + AROUND]
        return {
            "title": f"{paper.paper_id}: {paper.title}" if paper.title else paper.paper_id,
            "before": ("… " if span.start > AROUND else "") + before,
            "gold": span.text,
            "after": after + (" …" if span.end + AROUND < len(paper.text) else ""),
        }

    return {
        "problem": problem,
        "chars": sum(len(paper.text) for paper in problem.papers),
        "facts": [[place(span) for span in fact.spans[:PLACES]] for fact in problem.evidence],
        "rewards": {
            name: rewards[problem.problem_id] for name, rewards in report["by_problem"].items()
        },
    }


def score(value: float | None, digits: int = 3) -> str:
    """A number for the page; a dash for None."""
    return "–" if value is None else f"{value:.{digits}f}"  # noqa: RUF001


def embedded(path: Path) -> str:
    """A PNG file as a data URL."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def pair(transcripts: Sequence[Transcript]) -> list[tuple[Played, Played]]:
    """(before, after) episodes with their trees: the first `PAIRS` problems of each difficulty.

    The most typical comes first: that whose gain is nearest to the mean.
    """
    by_model: dict[str, dict[str, Transcript]] = {"before": {}, "after": {}}
    for item in transcripts:
        by_model[item["model"]][item["problem_id"]] = item
    both = [key for key in by_model["before"] if key in by_model["after"]]
    levels: dict[str, list[str]] = {}
    for key in both:
        levels.setdefault(by_model["before"][key]["difficulty"], []).append(key)
    before, after = (
        {key: (episodes[key], tree(episodes[key])) for key in both}
        for episodes in by_model.values()
    )
    gains = {key: (after[key][0]["reward"] or 0) - (before[key][0]["reward"] or 0) for key in both}
    mean = sum(gains.values()) / max(1, len(gains))
    shown = [key for ids in levels.values() for key in ids[:PAIRS]]
    return [(before[key], after[key]) for key in sorted(shown, key=lambda k: abs(gains[k] - mean))]


def tree(episode: Transcript) -> dict[str, Any] | None:
    """The root frame with `children` nested under each frame; None without any frame.

    A frame whose parent is not recorded becomes a child of the root.
    """
    nodes = {frame["frame"]: {**frame, "children": []} for frame in episode["frames"]}
    if not nodes:
        return None
    root = min(nodes)
    for number, node in nodes.items():
        if number != root:
            nodes.get(node["parent"], nodes[root])["children"].append(node)
    return nodes[root]
