"""Run a command until standard input ends: a server that ends with the process that started it.

    python tasks/deployment/until_eof.py COMMAND...

The input is a pipe of that process, so it ends in any case, even by SIGKILL. This process leads a
process group. It kills the rest of the group when the command has ended, however that ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

GRACE_S = 10.0
"""Seconds that the command has to end by itself."""


def main() -> None:
    """Run the command; exits with its code."""
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)

    def kill_group() -> None:
        os.killpg(os.getpgrp(), signal.SIGKILL)

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        threading.Timer(GRACE_S, kill_group).start()
        child.terminate()

    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    threading.Thread(target=wait_for_end, daemon=True).start()
    code = child.wait()
    kill_rest()
    os._exit(code if code >= 0 else 128 - code)  # a thread waits for the input


def kill_rest() -> None:
    """Kill the other processes of the group, until no new one is found."""
    known = {os.getpid()}
    while found := group() - known:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        known |= found


def group() -> set[int]:
    """Numbers of the processes of this group, by the list of Linux."""
    found = set()
    for pid in (int(path.name) for path in Path("/proc").glob("[0-9]*")):
        with suppress(ProcessLookupError):
            if os.getpgid(pid) == os.getpgrp():
                found.add(pid)
    return found


if __name__ == "__main__":
    main()
