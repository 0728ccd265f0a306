"""The host's handle on the processes that fork workers: one zygote, and templates forked from it.

The zygote starts by exec with a minimal environment and is never forked from the server. So it
contains no memory, key or file of the server. A template is a fork of the zygote with one context.
Both obey the same messages, each on its own control socket: see `inside/zygote.py`.
"""

from __future__ import annotations

import contextlib
import errno
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
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import Stemmer

from env.errors import SandboxError
from env.server.sandbox.usage import MemoryUsage, private

_FOLDER = Path(__file__).resolve().parent
_ROOT = _FOLDER.parents[2]
"""Folder of `env`, of which the zygote imports `ranking` alone, with what that needs."""
_START_S = 60.0
_DESCRIPTORS_S = 10.0
"""Seconds to wait for a free descriptor."""
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    "TZ": "UTC",
    # A process that forks must have one thread only, even with numerical libraries loaded.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_NO_RANDOM_ADDRESSES = 0x0040000
# Hashes of None and of types are addresses, and hashes decide the order of sets. So the interpreter
# is loaded at the same address each time, if the kernel allows it. This needs one second exec.
_CODE = f"""
import ctypes, os, sys
persona = ctypes.CDLL(None).personality
now = persona(0xFFFFFFFF)
if sys.argv[5:] != ["again"] and persona(now | {_NO_RANDOM_ADDRESSES}) == now >= 0:
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "again"])
sys.path += sys.argv[1:3]
import importlib.util as util
spec = util.spec_from_file_location("Stemmer", sys.argv[4])  # of all packages, this file alone
sys.modules["Stemmer"] = util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["Stemmer"])
from inside.zygote import main
for name in [n for n in sys.modules if n.split('.')[0] in ('env', 'Stemmer')]:
    del sys.modules[name]  # cells import nothing of the server
main(int(sys.argv[3]))
"""


@dataclass(frozen=True)
class Bare:
    """Memory of a worker that has run nothing yet."""

    resident: int
    """Bytes in memory, shared ones included."""
    own: int
    """Bytes of its own; a quarter of the former if this user may not read that."""
    exact: bool
    """Whether this user may."""


class Spawner(ABC):
    """A process that forks workers. Thread-safe; if it has died, methods raise SandboxError.

    Args:
        control: The host's end of its control socket.
        relieve: Called when no descriptor is free; it may close some that nobody needs.
    """

    _kind: str
    pid: int
    """Its process id."""

    def __init__(self, control: socket.socket, relieve: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._bare: Bare | None = None
        self._relieve = relieve
        self._control = control
        self._control.settimeout(_START_S)

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether the process still runs."""

    @abstractmethod
    def close(self) -> None:
        """End the process and all its workers."""

    @abstractmethod
    def _end(self) -> None:
        """Kill the process and wait for its end; afterwards `alive` is False."""

    def fork(self) -> tuple[int, socket.socket]:
        """Start a worker; return its process id and the host's end of its channel."""
        # Step 1: make a channel; the server keeps one end.
        ours, theirs = self._channel()
        # Step 2: send the other end along with the message. The fork reads it as descriptor 3.
        with theirs:
            try:
                pid = self._forked(b"fork", theirs.fileno())
            except SandboxError:
                ours.close()
                raise
        # Step 3: the server's copy of the other end is closed, so that the end of the worker
        # closes the channel. Reads never block: a worker may send half a frame.
        ours.setblocking(False)
        return pid, ours

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Signal a worker that has not been reaped."""
        if not self.alive:
            raise SandboxError(f"The sandbox's {self._kind} died, and its workers with it.")
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            raise SandboxError("A sandbox process ended without being reaped.") from None

    def measured(self, pid: int, now: MemoryUsage) -> Bare:
        """Memory of a worker that has run nothing yet, from the first one that asks.

        Args:
            pid: The worker that asks.
            now: Its figures.
        """
        if self._bare is None:
            own = private(pid)
            self._bare = Bare(now.resident, own or now.resident // 4, own is not None)
        return self._bare

    def reap(self, pid: int) -> int:
        """Wait for a killed or dead worker; return its wait status."""
        return self._ask(b"reap" + struct.pack("!i", pid))

    def _channel(
        self, kind: socket.SocketKind = socket.SOCK_STREAM
    ) -> tuple[socket.socket, socket.socket]:
        """A pair of connected sockets; waits while strangers hold all descriptors."""
        deadline = time.monotonic() + _DESCRIPTORS_S
        while True:
            try:
                return socket.socketpair(socket.AF_UNIX, kind)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or time.monotonic() > deadline:
                    raise SandboxError(f"A channel could not be made ({error.strerror}).") from None
            self._relieve()
            time.sleep(0.02)

    def _forked(self, message: bytes, *fds: int) -> int:
        pid = self._ask(message, *fds)
        if pid < 0:
            raise SandboxError(f"A sandbox process could not be forked ({os.strerror(-pid)}).")
        return pid

    def _ask(self, message: bytes, *fds: int) -> int:
        with self._lock:
            try:
                socket.send_fds(self._control, [message], fds)
                answer = self._control.recv(16)
            except OSError as error:
                self._end()  # a late answer would be read as the answer to the next message
                told = f"The sandbox's {self._kind} does not answer ({error})."
                raise SandboxError(told) from None
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
    """The process with the imported standard library and without a context.

    Args:
        bpf: The workers' system-call filter; None only in the tests' negative control.
        relieve: As of `Spawner`.

    Raises:
        SandboxError: it does not start; the message ends with the last line of its errors.
    """

    _kind = "zygote"

    def __init__(self, bpf: bytes | None, relieve: Callable[[], None] = lambda: None) -> None:
        # Step 1: reserve descriptors 0 to 2 and make the control socket.
        _hold_standard_descriptors()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(ours, relieve)
        command = [sys.executable, "-s", "-S", "-P", "-B", "-c", _CODE, str(_FOLDER), str(_ROOT)]
        with theirs, tempfile.TemporaryFile() as errors:
            # Step 2: exec an interpreter that inherits only the control socket and these streams.
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), Stemmer.__file__],
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
            # Step 3: send the configuration. If the process has died, it never reports ready.
            with contextlib.suppress(OSError):
                self._control.send(marshal.dumps({"bpf": bpf}))
            # Step 4: wait until it has imported everything and given up its rights.
            if not self._comes_up():
                self.close()
                errors.seek(0)
                reason = errors.read().decode(errors="replace").strip().splitlines()[-1:]
                raise SandboxError(
                    f"The sandbox's zygote did not start ({''.join(reason) or 'no reason given'})."
                )

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def template(self, context: bytes) -> Template:
        """Fork a template with this context, which `wire.dump` has encoded.

        Raises:
            SandboxError: it does not start.
            OSError: no descriptor or no memory is free for the context.
        """
        ours, theirs = self._channel(socket.SOCK_SEQPACKET)
        try:
            with theirs, open(os.memfd_create("context"), "w+b") as file:
                file.write(context)
                file.seek(0)
                pid = self._forked(b"template", theirs.fileno(), file.fileno())
        except (OSError, SandboxError):
            ours.close()
            raise
        return Template(self, pid, ours, len(context), self._relieve)

    def close(self) -> None:
        """End the process and all its workers; return when they are gone."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # also wakes a thread that waits for an answer
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._end()
        self._control.close()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()


class Template(Spawner):
    """A fork of the zygote with one context; its workers share the pages.

    Made by `Zygote.template`. `reserve` announces each `fork`, so that `retire` cannot come
    between the choice of a template and the fork from it.

    Args:
        zygote: Its parent, which reaps it.
        pid: Its process id.
        control: The host's end of its control socket.
        size: Bytes of the encoded context.
        relieve: As of `Spawner`.

    Raises:
        SandboxError: it does not start.
    """

    _kind = "template"

    def __init__(
        self,
        zygote: Zygote,
        pid: int,
        control: socket.socket,
        size: int,
        relieve: Callable[[], None],
    ) -> None:
        super().__init__(control, relieve)
        self._zygote = zygote
        self.pid = pid
        self.size = size
        self._guard = threading.Lock()
        self._users = 0
        self._ended = False
        if not self._comes_up():
            self.close()
            raise SandboxError("A template of the sandbox did not start.")

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
        """End it if it has no worker and no announced fork; return whether it has ended."""
        with self._guard:
            if self._users:
                return False
        self.close()
        return True

    def fork(self) -> tuple[int, socket.socket]:
        """As `Spawner.fork`; the worker already has the context."""
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
        """End the process; its workers die with it."""
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
        with contextlib.suppress(SandboxError):  # it ended with the zygote
            self._zygote.signal(self.pid, signal.SIGKILL)
            self._zygote.reap(self.pid)


def _hold_standard_descriptors() -> None:
    """Open descriptors 0 to 2 on /dev/null if this process was started without them.

    Otherwise a socket gets such a number. The zygote would replace its control socket by its own
    standard streams, and libraries would write their errors into a worker's channel.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is `fd`
