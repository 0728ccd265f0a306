"""Paths and digests in dvc.yaml that depend on the settings: section `derived`, for DVC alone."""

from __future__ import annotations

from pathlib import Path

from agent.settings import NANO
from tasks import paths
from tasks.config.params import Params
from tasks.io import digest


def derive(params: Params) -> dict[str, str]:
    """Paths in dvc.yaml that depend on the settings.

    DVC requires every dependency to exist. Where a source reads no file, the module that would
    read it takes its place, because `prepare` depends on it anyway.
    """
    source, problems, documents, titled = params.model.source, None, None, None
    if params.prepare.source == "files":
        files = params.prepare.files
        problems, documents, titled = files.path, files.documents, files.headings
    return {
        "model": _existing(source if source != NANO else None) or "tasks/warmstart.py",
        "template": _existing(params.model.template) or "tasks/warmstart.py",
        "problems": _existing(problems) or "tasks/data/read.py",
        "documents": _existing(documents) or "tasks/data/documents.py",
        "headings": _existing(titled) or "tasks/data/headings.py",
        "trained_before": _existing(params.prepare.splits.trained) or "tasks/data/split.py",
        **_of_demonstrations(params),
    }


def _of_demonstrations(params: Params) -> dict[str, str]:
    """Inputs of demonstrations, and a digest of the settings of their episodes.

    Other kinds depend on neither, so that changed problems do not teach nano again.
    """
    shown, nothing = params.warmstart.may_demonstrate, "tasks/warmstart.py"
    lora = params.train.lora.model_dump()  # nothing that a full card makes one lower
    requests = params.evaluate_model.model_dump(include={"sampling", "template_kwargs"})
    settings = [params.of_episodes(), lora, params.train.curriculum.levels, requests]
    return {
        "zero_shot": str(paths.ZERO_SHOT) if params.warmstart.kind == "auto" else nothing,
        "sft_problems": "data/problems" if shown else nothing,
        "sft_settings": digest(settings) if shown else "",
    }


def _existing(path: str | None) -> str | None:
    # The stage reports a missing file with a better message than DVC.
    return path if path is not None and Path(path).exists() else None
