"""What a policy can be told wrong. Infrastructure failures are `env.errors.EpisodeError`."""


class PolicyError(ValueError):
    """A model, tokenizer, template or endpoint cannot be used: what is wrong, how to mend it."""


class ExportError(ValueError):
    """A merge that must not be made: what is wrong, how to mend it."""


class ParityError(RuntimeError):
    """The trainer computes other log-probabilities than the rollout sampled with."""


class RolloutError(RuntimeError):
    """A step brought no valid episode: nothing to learn from, and something to mend."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, or there is no room for one."""
