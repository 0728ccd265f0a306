"""The host's handle on the processes that fork workers: one zygote, and templates forked from it.

The zygote is exec'd with an environment made by hand, never forked from the server, so that no
memory, key or file of the server is in it. A template is a fork of the zygote that holds one
context. Both obey the same messages on a control socket of their own: see `inside/zygote.py`.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from env.errors import SandboxError

_FOLDER = Path(__file__).resolve().parent
_START_S = 60.0
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    "TZ": "UTC",
    # What forks must hold one thread, numerical libraries included.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_CODE = """
import sys
sys.path.append(sys.argv[1])
from inside.zygote import main
main(int(sys.argv[2]))
"""


class Spawner(ABC):
    """A process that forks workers. Thread-safe; once it has died, methods raise SandboxError.

    Args:
        control: The host's end of its control socket.
    """

    _kind: str
    pid: int
    """The process itself."""

    def __init__(self, control: socket.socket) -> None:
        self._lock = threading.Lock()
        self._control = control
        self._control.settimeout(_START_S)

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether the process still runs."""

    @abstractmethod
    def close(self) -> None:
        """End the process and with it every worker."""

    @abstractmethod
    def _end(self) -> None:
        """Kill the process and wait for its end: from here on `alive` says False."""

    def fork(self) -> tuple[int, socket.socket]:
        """Start a worker; return its process id and the host's end of its channel."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                pid = self._forked(b"fork", theirs.fileno())
            except SandboxError:
                ours.close()
                raise
        ours.setblocking(False)
        return pid, ours

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Signal a worker that has not been reaped."""
        if not self.alive:
            raise SandboxError(f"The sandbox's {self._kind} died, and its workers with it.")
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            raise SandboxError("A sandbox process is gone without being reaped.") from None

    def reap(self, pid: int) -> int:
        """Wait for a killed or dead worker; return its wait status."""
        return self._ask(b"reap" + struct.pack("!i", pid))

    def _forked(self, message: bytes, *fds: int) -> int:
        pid = self._ask(message, *fds)
        if pid < 0:
            raise SandboxError(f"A sandbox process could not be forked: {os.strerror(-pid)}")
        return pid

    def _ask(self, message: bytes, *fds: int) -> int:
        with self._lock:
            try:
                socket.send_fds(self._control, [message], fds)
                answer = self._control.recv(16)
            except OSError as error:
                self._end()  # a late answer would be taken for that of the next question
                raise SandboxError(
                    f"The sandbox's {self._kind} does not answer ({error})."
                ) from None
            if len(answer) != 4:
                self._end()
                raise SandboxError(f"The sandbox's {self._kind} died.")
        number: Any = struct.unpack("!i", answer)[0]
        return int(number)

    def _comes_up(self) -> bool:
        try:
            return self._control.recv(16) == b"ready"
        except OSError:
            return False


class Zygote(Spawner):
    """The process that has the standard library imported and no context.

    Args:
        bpf: The workers' system-call filter; None only in the tests' negative control.
        preload: Modules to import beside the standard library, and the folder of each.

    Raises:
        SandboxError: it does not start; the message ends with its own last words.
    """

    _kind = "zygote"

    def __init__(self, bpf: bytes | None, preload: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(ours)
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
            self.pid = self._process.pid
            theirs.close()
            with contextlib.suppress(OSError):  # it died: it does not come up
                self._control.send(marshal.dumps({"bpf": bpf, "preload": dict(preload or {})}))
            if not self._comes_up():
                self.close()
                errors.seek(0)
                reason = errors.read().decode(errors="replace").strip().splitlines()[-1:]
                raise SandboxError(
                    f"The sandbox's zygote did not start: {''.join(reason) or 'no reason given'}"
                )

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def template(self, context: bytes) -> Template:
        """Fork a template that holds this context, as `wire.dump` encodes it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, open(os.memfd_create("context"), "w+b") as file:
            file.write(context)
            file.seek(0)
            try:
                pid = self._forked(b"template", theirs.fileno(), file.fileno())
            except SandboxError:
                ours.close()
                raise
        return Template(self, pid, ours, len(context))

    def close(self) -> None:
        """End the process and with it every worker; returns when they are gone."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # also wakes whoever waits for an answer
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._end()
        self._control.close()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()


class Template(Spawner):
    """A fork of the zygote that holds one context; its workers share the pages.

    Made by `Zygote.template`. Each `fork` is announced by `reserve`, so that `retire` cannot
    come between the choice of a template and the fork from it.

    Args:
        zygote: Its parent, which reaps it.
        pid: The process.
        control: The host's end of its control socket.
        size: Bytes of the encoded context.

    Raises:
        SandboxError: it does not come up.
    """

    _kind = "template"

    def __init__(self, zygote: Zygote, pid: int, control: socket.socket, size: int) -> None:
        super().__init__(control)
        self._zygote = zygote
        self.pid = pid
        self.size = size
        self._guard = threading.Lock()
        self._users = 0
        self._ended = False
        if not self._comes_up():
            self.close()
            raise SandboxError("A sandbox's template did not come up.")

    @property
    def alive(self) -> bool:
        """Whether the process still runs: its end of the socket closes before its workers die."""
        with self._guard:
            if self._ended or not self._zygote.alive:
                return False
            hang_up = select.poll()
            hang_up.register(self._control, 0)
            return not hang_up.poll(0)

    def reserve(self) -> None:
        """Announce a `fork`."""
        with self._guard:
            self._users += 1

    def retire(self) -> bool:
        """End it if it has no worker and none is announced; return whether it has ended."""
        with self._guard:
            if self._users:
                return False
        self.close()
        return True

    def fork(self) -> tuple[int, socket.socket]:
        """As `Spawner.fork`; the worker holds the context already."""
        try:
            return super().fork()
        except SandboxError:
            self._release()
            raise

    def reap(self, pid: int) -> int:
        """As `Spawner.reap`."""
        try:
            return super().reap(pid)
        finally:
            self._release()

    def close(self) -> None:
        """End the process; a worker of it dies with it."""
        self._end()
        self._control.close()

    def _release(self) -> None:
        with self._guard:
            self._users -= 1

    def _end(self) -> None:
        with self._guard:
            if self._ended:
                return
            self._ended = True
        with contextlib.suppress(SandboxError):  # a zygote that died took it along
            self._zygote.signal(self.pid, signal.SIGKILL)
            self._zygote.reap(self.pid)
