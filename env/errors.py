"""What can go wrong between a client and the environment, and inside its sandbox.

The model's mistakes are observations, never one of these.
"""


class EpisodeError(Exception):
    """An episode was lost to infrastructure: record it as void, never as a reward of 0."""


class RefusedError(Exception):
    """The server refused a request (its state is unchanged): a mistake of the calling code."""


class SettingsError(ValueError):
    """The server's settings or data are wrong; the message names file, key and remedy."""


class SandboxError(Exception):
    """The sandbox cannot be had or broke; the message says which layer and how to mend it."""


class ProblemError(ValueError):
    """A problem row is wrong; the message names row, field and remedy."""


class SourceError(ValueError):
    """A source of problems cannot be read at all; the message says what to set or to mend."""


class SourceUnreachable(SourceError):
    """The Hub did not answer; trying again later may help."""
