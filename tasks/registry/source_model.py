"""The base model before any training of this project: `model.source`, in 16 bit or NF4.

Neighbours: `warmstart.py` and `demonstrate.py` call it, `agent/models/base_model.py` writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.config.params import Params
from tasks.registry import warm_start
from tasks.reporting import progress

if TYPE_CHECKING:
    from tasks.tracking.runs import StageRun


def write(params: Params, run: StageRun, folder: Path) -> str:
    """Write the base, its origin and, with `nf4`, its twin into a folder; returns the origin.

    Raises:
        PolicyError: the model cannot be read or adapted, or the disk has no room.
    """
    from agent.models.base_model import prepare_base

    targets = params.train.lora.targets if params.train.method == "lora" else []
    with progress.doing(f"read {params.model.source}"):
        origin = prepare_base(params.model, folder, targets=targets).origin
    warm_start.write_provenance(folder, {"from": origin})
    run.set_tags({"base": origin})
    return origin
