"""One run at a time in this folder: the lock, and where a run prints that a worker started."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.surroundings import outlive_worker
from tasks.errors import StageError

RUNNING = Path(".run")
LOCK = RUNNING / "chain.lock"
PRINTED = RUNNING / "flow.log"
"""What a run prints that a Prefect worker started: the last one's."""


class BusyError(StageError):
    """Another run works in this folder."""


@contextmanager
def exclusive(wait_s: float = 0.0) -> Iterator[None]:
    """One chain at a time in this folder; the kernel frees it when its process dies.

    A run that a Prefect worker started prints to `PRINTED` from here on.

    Args:
        wait_s: how long to wait for the other one.

    Raises:
        BusyError: another one is running.
    """
    RUNNING.mkdir(exist_ok=True)
    deadline = time.monotonic() + wait_s
    with LOCK.open("a+") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.5)
                    continue
            handle.seek(0)
            waited = f" and still did after {wait_s:g} s" if wait_s else ""
            raise BusyError(
                f"another run works in this folder (process {handle.read() or 'unknown'})"
                f"{waited}: wait for it, or stop it with Ctrl-C or SIGTERM"
            )
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        outlive_worker(PRINTED)
        yield
