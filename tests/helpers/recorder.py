"""A stand-in for the MLflow run of a stage: it keeps what it was given."""

from pathlib import Path
from typing import Any

from tasks.config.params import Params


class Recorder:
    """Metrics and tags by name, and artifacts that were there when they were logged."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.artifacts: list[Path] = []
        self.tags: dict[str, str] = {}

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.metrics |= metrics

    def set_tags(self, tags: dict[str, str]) -> None:
        self.tags |= tags

    def log_artifact(self, path: Path) -> None:
        assert path.exists()
        self.artifacts.append(path)


def recorded(stage: Any, params: Params) -> Recorder:
    """What a stage gives to its run."""
    run = Recorder()
    stage.run(params, run)
    return run
