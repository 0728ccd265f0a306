"""The rig of the sandbox's tests: results of cells, and processes of REPLs."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable

import psutil

from env.server.sandbox import CellDone, Repl, SubCall


def done(event: CellDone | SubCall) -> CellDone:
    """The end of a cell."""
    assert isinstance(event, CellDone), event
    return event


def call(event: CellDone | SubCall) -> SubCall:
    """A sub-call that waits for its answer."""
    assert isinstance(event, SubCall), event
    return event


def out(event: CellDone | SubCall) -> str:
    """What a cell printed."""
    return done(event).stdout


def error_of(event: CellDone | SubCall) -> str | None:
    """Why a cell ended early."""
    return done(event).error


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


def parent_of(pid: int) -> int:
    """Process id of the parent."""
    return psutil.Process(pid).ppid()


def is_gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def below(pid: int) -> set[int]:
    """Process ids of all descendants."""
    return {process.pid for process in psutil.Process(pid).children(recursive=True)}


def left() -> tuple[set[int], int]:
    """Descendants and open descriptors of this process."""
    gc.collect()  # what earlier tests dropped is closed by now
    return below(os.getpid()), len(os.listdir("/proc/self/fd"))
