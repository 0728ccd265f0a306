"""Part of a Trainer: checkpoints are written under another name and renamed when complete."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer

from agent.training import checkpoints, ranks


class WholeCheckpoints(Trainer):
    """Base before that of TRL: `class Mine(WholeCheckpoints, SFTTrainer)` sets what is below."""

    folder: Path
    """Folder of the checkpoints."""
    kept: int
    """Checkpoints that are not pruned."""
    extra_state: Callable[[], dict[str, Any]]
    """Returns the caller's part of a checkpoint, as JSON values, for a resume."""
    _saving: Path | None = None

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._saving) if self._saving else super()._get_output_dir(trial)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Write the checkpoint under another name, the caller's state last, and rename it."""
        if ranks.index():
            self.store_flos()  # rank 0 waits for it when it saves
            return
        step = self.state.global_step
        with checkpoints.writing(self.folder, step) as aside:
            self._saving = aside.parent
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._saving = None
            state = {"step": step, **self.extra_state()}
            (aside / checkpoints.STATE).write_text(json.dumps(state), encoding="utf-8")
        checkpoints.prune(self.folder, self.kept)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no card, since a checkpoint is not a release."""
