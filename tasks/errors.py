"""What stops the pipeline. Each message says what, where and how to mend it."""


class PipelineError(Exception):
    """Base: printed as one line by the command line, exit code 1."""

    exit_code = 1


class ConfigError(PipelineError):
    """A setting is wrong; raised before anything expensive starts."""

    exit_code = 2


class GateFailed(PipelineError):
    """The zero-shot gate refused to train; `reports/gate.json` says why and what to do."""

    exit_code = 3


class StageError(PipelineError):
    """A stage could not do its work."""
