"""The host's handle on a zygote process: start it, have it fork and reap, end it.

The zygote is exec'd with an environment made by hand, never forked from the server, so that no
memory, key or file of the server is in it. Messages: see `inside/zygote.py`.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from env.errors import SandboxError

_FOLDER = Path(__file__).resolve().parent
_START_S = 60.0
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin", "TZ": "UTC"}
_NO_RANDOM_ADDRESSES = 0x0040000
# None and types are hashed by their address, and sets ordered by hashes: so the interpreter lies at
# the same address each time, where the kernel allows it. That takes a second exec, and only one.
_CODE = f"""
import ctypes, os, sys
persona = ctypes.CDLL(None).personality
now = persona(0xFFFFFFFF)
if sys.argv[3:] != ["again"] and persona(now | {_NO_RANDOM_ADDRESSES}) == now >= 0:
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "again"])
sys.path.append(sys.argv[1])
from inside.zygote import main
main(int(sys.argv[2]))
"""


class Spawner:
    """One zygote. Thread-safe; when the zygote has died every method raises SandboxError."""

    def __init__(self, bpf: bytes | None) -> None:
        _hold_standard_descriptors()
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-s", "-S", "-P", "-B", "-c", _CODE, str(_FOLDER)]
        with theirs, tempfile.TemporaryFile() as errors:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=_ENVIRONMENT,
                cwd="/",
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
            theirs.close()
            self._control.settimeout(_START_S)
            try:
                self._control.send(marshal.dumps({"bpf": bpf}))
                ready = self._control.recv(16) == b"ready"
            except OSError:
                ready = False
            if not ready:
                self.close()
                errors.seek(0)
                reason = errors.read().decode(errors="replace").strip().splitlines()[-1:]
                raise SandboxError(
                    f"The sandbox's zygote did not start: {''.join(reason) or 'no reason given'}"
                )

    @property
    def alive(self) -> bool:
        """Whether the zygote still runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The zygote's process id."""
        return self._process.pid

    def fork(self) -> tuple[int, socket.socket]:
        """Start a worker; return its process id and the host's end of its channel."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                pid = self._ask(b"fork", theirs.fileno())
            except SandboxError:
                ours.close()
                raise
        if pid < 0:
            ours.close()
            raise SandboxError(f"A sandbox process could not be forked: {os.strerror(-pid)}")
        ours.setblocking(False)
        return pid, ours

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Signal a worker that has not been reaped."""
        if not self.alive:
            raise SandboxError("The sandbox's zygote died, and its workers with it.")
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            raise SandboxError("A sandbox process is gone without being reaped.") from None

    def reap(self, pid: int) -> int:
        """Wait for a killed or dead worker; return its wait status."""
        return self._ask(b"reap" + struct.pack("!i", pid))

    def _ask(self, message: bytes, fd: int | None = None) -> int:
        with self._lock:
            try:
                socket.send_fds(self._control, [message], [] if fd is None else [fd])
                answer = self._control.recv(16)
            except OSError as error:
                self._end()  # a late answer would be taken for that of the next question
                raise SandboxError(f"The sandbox's zygote does not answer ({error}).") from None
            if len(answer) != 4:
                self._end()
                raise SandboxError("The sandbox's zygote died.")
        number: Any = struct.unpack("!i", answer)[0]
        return int(number)

    def close(self) -> None:
        """End the zygote and with it every worker; returns when they are gone."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # also wakes whoever waits for an answer
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._end()
        self._control.close()

    def _end(self) -> None:
        """Kill the process and wait for its end: from here on `alive` says False."""
        self._process.kill()
        self._process.wait()


def _hold_standard_descriptors() -> None:
    """Open 0 to 2 on nothing where this process was started without them.

    Else a socket gets such a number: the zygote's would be replaced by its own standard streams,
    and a worker's would receive what some library writes as an error.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is `fd`
