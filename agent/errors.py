"""Errors of the agent side. Infrastructure failures are `env.errors.EpisodeError`."""


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
