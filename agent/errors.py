"""What stops an agent's work. Each message says what failed, where and how to mend it."""


class AgentError(Exception):
    """Base of this package's errors."""


class ParityError(AgentError):
    """The trainer computes other log-probabilities than the rollout sampled with."""


class RolloutError(AgentError):
    """A whole step's episodes were void, or came back in the wrong shape."""


class CheckpointError(AgentError):
    """A checkpoint cannot be written or read."""
