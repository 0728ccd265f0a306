"""Templates of pages and of a Space's card, and the scores that a result names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

HEADLINES = {
    "reward": "reward, sampled",
    "f1_sampled": "F1, sampled",
    "f1_greedy": "F1, greedy",
    "primary_objective": "primary objective, sampled",
}
"""Scores of a result: name in the report of the stage `evaluate`, and label."""
TEMPLATES = Path(__file__).resolve().parent / "templates"


def rendered(template: str, **facts: Any) -> str:
    """A template as Markdown, without escapes: the values are checked settings and figures."""
    environment = templates(autoescape=False, keep_trailing_newline=True)
    return environment.get_template(template).render(**facts)


def templates(**options: Any) -> Environment:
    """The templates of this folder; a missing value is an error."""
    return Environment(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, **options)
