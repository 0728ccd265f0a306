"""Results and processes of REPLs, for tests that know whether a cell ends or makes a sub-call."""

from __future__ import annotations

import time
from collections.abc import Callable

from env.server.sandbox import CellDone, Repl, SubCall


def done(event: CellDone | SubCall) -> CellDone:
    """The end of a cell."""
    assert isinstance(event, CellDone), event
    return event


def call(event: CellDone | SubCall) -> SubCall:
    """A sub-call that waits for its answer."""
    assert isinstance(event, SubCall), event
    return event


def pid_of(repl: Repl) -> int:
    """Process id of the worker."""
    assert repl._worker is not None
    return repl._worker.pid


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether the condition is true within some seconds."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()
