"""Fingerprint of a training: the code, settings and data that its checkpoints depend on.

`tasks/train.py` continues from a checkpoint with the same fingerprint and sets others aside.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.io import digest

if TYPE_CHECKING:
    from tasks.config.params import Params

BOOKKEEPING = {
    *("save_every", "keep_checkpoints", "report_to"),
    *("micro_batch_tokens", "gradient_checkpointing"),
}
"""Settings that may differ from those of a checkpoint."""
ROOT = Path(__file__).resolve().parents[2]
CODE = (
    *("agent", "env", "rewards", "tasks/io.py", "tasks/paths.py", "tasks/reporting/playing.py"),
    *("tasks/train.py", "tasks/train_rank.py", "tasks/training"),
)
"""The code that the stage `train` depends on, as in dvc.yaml; folders count with all in them."""


def fingerprint(params: Params, base: Path, data: Path) -> dict[str, str]:
    """Hashes by name; a checkpoint can be continued if all are equal.

    Args:
        params: settings; those of `BOOKKEEPING` and what only fits a machine do not count.
        base: folder of the base model.
        data: Parquet file of the training problems.
    """
    from tasks.tracking.lineage import files_hash, folder_hash

    settings = {**params.of_episodes(), "train": params.train.model_dump(exclude=BOOKKEEPING)}
    return {
        **{f"settings of {name}": digest(section) for name, section in settings.items()},
        "base model": folder_hash(base),
        "training data": files_hash([data], data.parent),
        "code": code_hash(),
    }


def code_hash() -> str:
    """Hash of the code that a training depends on."""
    from tasks.tracking.lineage import files_hash

    return files_hash(code_files(), ROOT)


def code_files() -> list[Path]:
    """Python files of `CODE`."""
    return sorted(
        file
        for path in map(ROOT.joinpath, CODE)
        for file in (path.rglob("*.py") if path.is_dir() else [path])
    )
