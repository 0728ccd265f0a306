"""The rig of the sandbox's tests: results of cells, and processes of REPLs."""

import os
import time
from collections.abc import Callable
from contextlib import suppress

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


def left() -> set[int | tuple[str, str]]:
    """Descendants of this process, and its open descriptors with what they stand for.

    Collect garbage before the sandbox starts, since what earlier tests dropped would close
    meanwhile, and not afterwards, since whatever the sandbox opens, it closes itself.
    """
    found: set[int | tuple[str, str]] = {*below(os.getpid())}
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor that listed them
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found
