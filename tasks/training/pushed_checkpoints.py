"""Checkpoints of the training in the shared store, for a host that takes over.

Only the newest one is kept there. The record of `tasks/shared/holder.py` names it when all its
files are there, so a host that dies while it pushes leaves the last one. Without a shared store
nothing happens here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from agent.training import checkpoints
from env import variables
from tasks.errors import PipelineError
from tasks.shared import holder, remote

logger = logging.getLogger(__name__)


class CheckpointPusher:
    """Pushes the newest checkpoint of a folder.

    Args:
        folder: folder of the checkpoints.
        marks: fingerprint of the training.
        every: steps between two pushes.
    """

    def __init__(self, folder: Path, marks: Mapping[str, str], every: int) -> None:
        self.folder, self.marks, self.every = folder, dict(marks), every
        self._last = 0

    def push(self) -> None:
        """Push the newest checkpoint if it is `every` steps newer than the last pushed one.

        A store that does not answer, or refuses, is a warning: the training goes on, and the next
        step tries again.

        Raises:
            ReplacedError: another run holds the store.
        """
        newest = max(checkpoints.steps(self.folder).items(), default=None)
        if (
            variables.FENCE not in os.environ
            or newest is None
            or newest[0] < self._last + self.every
        ):
            return
        step, path = newest
        folder = f"{os.environ[variables.FENCE]}-{step}"
        name = f"{holder.CHECKPOINTS}/{folder}"
        try:
            holder.check()
            remote.store().upload(path, name)
            holder.change(checkpoint={"name": name, "step": step, "marks": self.marks})
            holder.delete_checkpoints(but=folder)
        except holder.ReplacedError:
            raise
        except PipelineError as error:
            logger.warning("checkpoint %d was not pushed: %s", step, error)
            return
        self._last = step


def fetch_newer(folder: Path, marks: Mapping[str, str], start: checkpoints.Start) -> bool:
    """Fetch the pushed checkpoint of the same training if it is newer than the start here.

    Args:
        folder: folder of the checkpoints; one that does not fit the training is set aside.
        marks: fingerprint of the training.
        start: start that this folder permits.

    Raises:
        CheckpointError: it cannot be written.
    """
    pushed = holder.entry("checkpoint")
    here = int(start.checkpoint.name.rpartition("-")[2]) if start.checkpoint else 0
    if not pushed or pushed["marks"] != dict(marks) or pushed["step"] <= here:
        return False
    if start.checkpoint is None:
        checkpoints.set_aside(folder)
    with checkpoints.writing(folder, pushed["step"]) as aside:
        remote.store().download(pushed["name"], aside)
    return True
