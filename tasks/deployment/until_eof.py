"""Run a command until standard input ends: a server that ends with the process that started it.

    python tasks/deployment/until_eof.py COMMAND...

The input is a pipe of that process, so it ends in any case, even by SIGKILL. This process leads a
process group, which it then kills.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

GRACE_S = 10.0
"""Seconds that the command has to end by itself."""


def main() -> None:
    """Run the command; exits with its code."""
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    orphaned = threading.Event()

    def kill_group() -> None:
        os.killpg(os.getpgrp(), signal.SIGKILL)

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        orphaned.set()
        threading.Timer(GRACE_S, kill_group).start()
        child.terminate()

    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    threading.Thread(target=wait_for_end, daemon=True).start()
    code = child.wait()
    if orphaned.is_set():
        kill_group()
    os._exit(code if code >= 0 else 128 - code)  # a thread waits for the input


if __name__ == "__main__":
    main()
