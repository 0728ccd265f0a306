"""Exceptions between a client and the environment, and inside its sandbox.

Mistakes of the model are observations, never one of these.
"""


class EpisodeError(Exception):
    """Infrastructure lost an episode: record it as void, never as a reward of 0."""


class RefusedError(Exception):
    """The server refused a request, a mistake of the caller; its state is unchanged."""


class SettingsError(ValueError):
    """The server's settings or data are wrong; the message names file, key and fix."""


class SandboxError(Exception):
    """The sandbox is not available or failed; the message names the layer and the fix."""


class ProblemError(ValueError):
    """A problem row is wrong; the message names row, field and fix."""


class SourceError(ValueError):
    """A source of problems cannot be read; the message says what to set or fix."""
