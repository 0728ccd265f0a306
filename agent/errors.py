"""What a policy can be told wrong. Infrastructure failures are `env.errors.EpisodeError`."""


class PolicyError(ValueError):
    """A model, tokenizer, template or endpoint cannot be used: what is wrong, how to mend it."""


class ExportError(ValueError):
    """A merge that must not be made: what is wrong, how to mend it."""
