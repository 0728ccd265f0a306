"""Errors of the agent side. Infrastructure failures are `env.errors.EpisodeError`."""

from __future__ import annotations

import errno
import textwrap


class PolicyError(ValueError):
    """A model, tokenizer, chat template or endpoint is unusable; the message says how to fix it."""


class StoppedError(RuntimeError):
    """The caller no longer wants the result."""


class ExportError(ValueError):
    """A merge that would damage the model; the message says how to fix it."""


class LogprobCheckError(RuntimeError):
    """The trainer and the rollout compute different log-probabilities."""


class RolloutError(RuntimeError):
    """A step produced no valid episode, so the trainer has no data."""


class RankError(RuntimeError):
    """A process of the training failed, or the processes differ."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, or the disk has no room for one."""


def cause(error: BaseException) -> str:
    """What an error of a library says, on one line of at most 200 characters, or else its type."""
    return textwrap.shorten(str(error), 200, placeholder="...") or type(error).__name__


_FULL_DISK = (
    "No space left on device",  # safetensors, shutil
    "disk is full",  # SQLite
    "iostream error",  # torch.save
    "No usable temporary directory",  # tempfile
)


def disk_is_full(error: BaseException | None) -> bool:
    """Whether an error or its cause is a full disk; libraries have errors of their own for it."""
    while error is not None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            return True
        if any(text in str(error) for text in _FULL_DISK):
            return True
        error = error.__cause__ or error.__context__
    return False
