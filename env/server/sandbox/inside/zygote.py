"""The zygote: a bare interpreter that forks workers and templates, and never runs policy code.

It imports the standard library once, confines itself, and then obeys the messages on its control
socket. `fork` comes with the worker's end of a channel, `template` with the template's end of a
control socket and with a context. `reap` names a child. At the end of the socket it kills all
its children. A template loads its context and then obeys the same messages. A dead child stays a
zombie until the host asks to reap it. So its process id cannot name another process while the
host may still signal it.
"""

from __future__ import annotations

import gc
import marshal
import os
import signal
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from . import confine, library, traces, worker


def main(control_fd: int) -> None:
    """Serve the host until its end of the control socket closes."""
    control = socket.socket(fileno=control_fd)
    config = marshal.loads(control.recv(1 << 20))
    library.load()
    null = os.open("/dev/null", os.O_RDWR)
    with open("/proc/self/statm") as file:
        config["base_bytes"] = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    library.hide_paths()
    config["layers"] = confine.harden_zygote()
    config["parent_pid"] = os.getpid()
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    traces.compile_cell("1", "")  # the first compilation is slow: no worker has to wait for it
    gc.collect()
    gc.freeze()
    control.send(b"ready")
    # A child returns its role, so that it does not run on top of its parent's stack.
    role: Role | None = partial(_serve, control, config)
    while role is not None:
        try:
            role = role()
        except BaseException:
            os._exit(worker.BROKEN)
    os._exit(0)


def _serve(control: socket.socket, config: dict[str, Any]) -> Role | None:
    """Fork and reap as the host asks; at the end of `control`, kill all children."""
    children: set[int] = set()
    while True:
        try:
            message, fds, _, _ = socket.recv_fds(control, 64, 2)
        except ConnectionError:
            message, fds = b"", []
        if not message:
            break
        if message.startswith(b"reap"):
            (pid,) = struct.unpack("!i", message.removeprefix(b"reap"))
            answer = os.waitpid(pid, 0)[1] if pid in children else 0
            children.discard(pid)
        else:
            answer = _fork()
            if answer == 0:
                return partial(_ROLES[message], fds, config)
            if answer > 0:
                children.add(answer)
            for fd in fds:
                os.close(fd)
        control.send(struct.pack("!i", answer))
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)
    return None


def _fork() -> int:
    """Same as `os.fork`, but returns minus the number of the error if it fails."""
    try:
        return os.fork()
    except OSError as error:
        return -(error.errno or 1)


def _worker(fds: list[int], config: dict[str, Any]) -> None:
    _keep(fds[0])
    worker.main(config)


def _template(fds: list[int], config: dict[str, Any]) -> Role:
    confine.die_with(config["parent_pid"])
    with open(fds[1], "rb") as file:
        context = marshal.loads(file.read())
    _keep(fds[0])
    control = socket.socket(fileno=3)
    gc.freeze()
    control.send(b"ready")
    return partial(_serve, control, {**config, "context": context, "parent_pid": os.getpid()})


def _keep(fd: int) -> None:
    """Close every descriptor above 2 except this one, which becomes 3."""
    os.dup2(fd, 3)
    os.closerange(4, 1024)  # these processes never have higher ones


Role = Callable[[], "Role | None"]

_ROLES: dict[bytes, Callable[[list[int], dict[str, Any]], Role | None]] = {
    b"fork": _worker,
    b"template": _template,
}
