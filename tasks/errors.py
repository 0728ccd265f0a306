"""Errors that stop the pipeline; each message says what failed and how to fix it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from agent.errors import (
    CheckpointError,
    ExportError,
    LogprobCheckError,
    PolicyError,
    RankError,
    RolloutError,
    StoppedError,
)
from env.errors import EpisodeError, SettingsError

EXPECTED: tuple[type[Exception], ...] = (
    *(CheckpointError, ExportError, LogprobCheckError, PolicyError, RankError, RolloutError),
    *(EpisodeError, SettingsError, StoppedError),
)
"""Errors of `agent` and `env` whose messages are written for the user."""


class PipelineError(Exception):
    """Base class; the command line prints the message and exits with code 1."""

    exit_code = 1


class ConfigError(PipelineError):
    """A setting is wrong; raised before anything expensive starts."""

    exit_code = 2


class GateFailed(PipelineError):
    """The zero-shot gate refused to train; `reports/gate.json` has the reason and the advice."""

    exit_code = 3


class StageError(PipelineError):
    """A stage failed."""


DISK_IS_FULL = (
    "the disk is full. Free some space, then run the same command again: finished stages are kept."
)


def disk_is_full(error: BaseException | None) -> bool:
    """Whether an error or its cause is a full disk; libraries wrap it in errors of their own."""
    while error is not None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            return True
        if any(text in str(error) for text in ("No space left on device", "disk is full")):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def stage_named(name: str) -> Iterator[None]:
    """Prefix the messages of errors with the stage's name, except the gate's advice."""
    try:
        yield
    except (ConfigError, StageError) as error:
        error.args = (f"{name}: {error}",)
        raise


@contextmanager
def as_stage_error(*others: type[Exception]) -> Iterator[None]:
    """Raise errors in `EXPECTED` and `others` as a StageError with the same message."""
    try:
        yield
    except (*EXPECTED, *others) as error:
        raise StageError(str(error)) from error
