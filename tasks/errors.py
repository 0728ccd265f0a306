"""Errors that stop the pipeline; each message says what failed and how to fix it."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.errors import (
    CheckpointError,
    ExportError,
    LogprobCheckError,
    PolicyError,
    RankError,
    RolloutError,
    StoppedError,
    disk_is_full,
)
from env.errors import EpisodeError, SettingsError

EXPECTED: tuple[type[Exception], ...] = (
    *(CheckpointError, ExportError, LogprobCheckError, PolicyError, RankError, RolloutError),
    *(EpisodeError, SettingsError, StoppedError),
)
"""Errors of `agent` and `env` whose messages are written for the user."""


_FULL_CARD = "the GPU has no memory left. Stop what else uses it, or choose a smaller model.source"

_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that control a terminal, or the direction of text."""


def visible(text: str) -> str:
    """Text of documents, models and endpoints for a terminal, which it must not control."""
    return _HIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)


class PipelineError(Exception):
    """Base class; the command line prints the message and exits with code 1."""

    exit_code = 1
    recorded = False
    """Whether the message is in MLflow, where the chain of another process reads it."""


class ConfigError(PipelineError):
    """A setting is wrong; raised before anything expensive starts."""

    exit_code = 2


class GateFailed(PipelineError):
    """The gate refused to train; `reports/gate.json` has the reason and the advice."""

    exit_code = 3


class StageError(PipelineError):
    """A stage failed."""


def full_disk(error: BaseException) -> StageError:
    """Error for the user: the file if it is known, the free space, and what to do."""
    file = getattr(error, "filename2", None) or getattr(error, "filename", None)
    at = f"at {file}; " if file else ""
    folders = (Path(tempfile.tempdir or os.environ.get("TMPDIR") or "/tmp"), Path.cwd())
    disks = {folder.stat().st_dev: folder for folder in folders if folder.is_dir()}
    free = ", ".join(
        f"{shutil.disk_usage(folder).free / 1e6:.0f} MB in {folder}" for folder in disks.values()
    )
    return StageError(
        f"the disk is full ({at}free now: {free}). Free some space, then run the same command "
        "again: finished work is kept."
    )


@contextmanager
def stage_named(name: str) -> Iterator[None]:
    """Prefix the messages of errors with the stage's name, except the gate's advice.

    Raises:
        StageError: the disk or the card is full.
    """
    try:
        yield
    except (ConfigError, StageError) as error:
        error.args = (f"{name}: {error}",)
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported here
            raise StageError(f"{name}: {_FULL_CARD} ({error})") from error
        if not disk_is_full(error):
            raise
        raise StageError(f"{name}: {full_disk(error)}") from error


@contextmanager
def as_stage_error(*others: type[Exception]) -> Iterator[None]:
    """Raise errors in `EXPECTED` and `others` as a StageError with the same message."""
    try:
        yield
    except (*EXPECTED, *others) as error:
        raise StageError(str(error)) from error
