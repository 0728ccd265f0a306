"""Results of a REPL, for tests that know whether a cell must end or make a sub-call."""

from __future__ import annotations

from env.server.sandbox import CellDone, SubCall


def done(event: CellDone | SubCall) -> CellDone:
    """The end of a cell."""
    assert isinstance(event, CellDone), event
    return event


def call(event: CellDone | SubCall) -> SubCall:
    """A sub-call that waits for its answer."""
    assert isinstance(event, SubCall), event
    return event
