"""Cards of repositories on the Hub: pure functions of plain values.

`tasks/publish.py` gathers the values and uploads the texts; `build_context.py` writes a Space's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

HEADLINES = {
    "reward": "reward, sampled",
    "f1_sampled": "F1, sampled",
    "f1_greedy": "F1, greedy",
    "primary_objective": "primary objective, sampled",
}
"""Scores of a card: name in the tags of a version, and label."""
TAGS = ["openenv", "rl-environment"]
TEMPLATES = Path(__file__).resolve().parent / "templates"


@dataclass(frozen=True)
class BeforeAfter:
    """Mean score of base and trained model over the same pairs of episodes."""

    before: float
    after: float
    low: float
    """Lower bound of the difference's 95 % interval."""
    high: float


def read_figures(tags: Mapping[str, str]) -> dict[str, BeforeAfter]:
    """Figures of `HEADLINES` in the tags of a registered version.

    Raises:
        KeyError: a tag is missing.
    """
    return {
        name: BeforeAfter(
            float(tags[f"evaluation.{name}.before"]),
            float(tags[f"evaluation.{name}.after"]),
            *json.loads(tags[f"evaluation.{name}.ci95"]),
        )
        for name in HEADLINES
    }


def model_card(
    figures: Mapping[str, BeforeAfter], license: str, base_model: str | None, **facts: Any
) -> str:
    """README.md of a model repository, with its metadata.

    Args:
        figures: scores before and after.
        license: identifier on the Hub.
        base_model: its name on the Hub; None for a base that is not there.
        facts: variables of `templates/model_card.md`, with `name` and `dataset`.
    """
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        license=license,
        library_name="transformers",
        pipeline_tag="text-generation",
        datasets=[facts["dataset"]],
        tags=[*TAGS, "recursive-language-model", "grpo"],
        base_model=base_model,
        base_model_relation="finetune" if base_model else None,
    )
    rows = [(label, figures[name]) for name, label in HEADLINES.items()]
    return _card(data.to_yaml(), rendered("model_card.md", rows=rows, **facts))


def dataset_card(counts: Mapping[str, int], license: str, **facts: Any) -> str:
    """README.md of a data set of tasks, with its metadata.

    Args:
        counts: problems of each split; `data/SPLIT.parquet` has them.
        license: identifier on the Hub.
        facts: variables of `templates/dataset_card.md`, with `name`.
    """
    from huggingface_hub import DatasetCardData

    files = [{"split": split, "path": f"data/{split}.parquet"} for split in counts]
    data = DatasetCardData(
        license=license,
        tags=[*TAGS, "recursive-language-model"],
        task_categories=["question-answering"],
        configs=[{"config_name": "default", "data_files": files}],
    )
    return _card(data.to_yaml(), rendered("dataset_card.md", counts=counts, **facts))


def _card(metadata: str, text: str) -> str:
    return f"---\n{metadata.strip()}\n---\n\n{text}"


def rendered(template: str, **facts: Any) -> str:
    """A template as Markdown, without escapes: the values are checked settings and figures."""
    environment = templates(autoescape=False, keep_trailing_newline=True)
    return environment.get_template(template).render(**facts)


def templates(**options: Any) -> Environment:
    """The templates of this folder; a missing value is an error."""
    return Environment(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, **options)
