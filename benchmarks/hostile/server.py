"""A server under measurement: its limits, memory, CPU time and log."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import yaml

from benchmarks.processes import cpu_s, peak_mb, pss_mb, tree
from env import auth
from flows.services.processes import free_port
from tasks.config import resolve
from tasks.deployment.checks import healthy

SMALL = "prepare.synthetic.collections={train: 8, validation: 1, test: 1}"
FORK = multiprocessing.get_context("fork")
WAYS = {
    "module": ("-m", "env.server.app"),
    "uvicorn": ("-m", "uvicorn", "env.server.app:app"),
}
"""Commands that start a server, after the interpreter's name."""
_START_S = 600.0
_SLOW_TICKS = 10
"""Samples of the server's memory for each sample of all its processes."""
_GROUPS = (
    ("memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ("", "/sys/fs/cgroup", "memory.max"),
)
"""Controller, mount and file of a limit on memory, for versions 1 and 2 of cgroups."""


@dataclass(frozen=True)
class Limits:
    """Limits of a server: descriptors and memory."""

    soft: int = 1024
    hard: int = 20_000
    memory_mb: int = 2048


@dataclass
class Server:
    """A started server.

    The kernel enforces the memory limit where `group` exists. Otherwise `Sampler` ends a server
    above the limit.
    """

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    limits: Limits
    group: Path | None

    @property
    def alive(self) -> bool:
        """Whether the server still runs."""
        return self.process.poll() is None

    @property
    def descendants(self) -> list[int]:
        """Pids of the zygote, the templates and the workers."""
        return tree(self.process.pid)[1:]

    def cpu_s(self) -> float:
        """CPU seconds of server and sandbox so far."""
        return cpu_s(self.process.pid)

    def pss_mb(self) -> float:
        """Memory of server and sandbox."""
        return pss_mb(tree(self.process.pid))

    def settled_mb(self, goal_mb: float, wait_s: float = 10.0) -> float:
        """Memory as soon as it is at most `goal_mb`, else after `wait_s`."""
        until = time.monotonic() + wait_s
        while (memory := self.pss_mb()) > goal_mb and time.monotonic() < until:
            time.sleep(0.5)
        return memory


@contextmanager
def serve(
    way: Sequence[str], limits: Limits, overrides: Sequence[str] = (SMALL,)
) -> Iterator[Server]:
    """Start a server, and end it with the block.

    Args:
        way: command after the interpreter's name, without address.
        limits: limits of the server's processes.
        overrides: settings other than the defaults.

    Raises:
        RuntimeError: the server does not become healthy; the message ends with its log.
    """
    group = memory_group(limits.memory_mb)
    port = free_port()
    hard = min(limits.hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1])

    def prepare() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text("0")
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits.soft, hard), hard))
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    with tempfile.TemporaryDirectory() as folder:
        settings, log = Path(folder, "settings.yaml"), Path(folder, "server.log")
        settings.write_text(yaml.safe_dump(resolve(overrides=overrides).model_dump(mode="json")))
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, *way, "--host", "127.0.0.1", "--port", str(port)],
                env={**os.environ, auth.SETTINGS: str(settings), auth.DATA: ""},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                preexec_fn=prepare,
            )
        server = Server(process, f"http://127.0.0.1:{port}", log, limits, group)
        try:
            _wait(server)
            yield server
        finally:
            _end(server)


def memory_group(limit_mb: int) -> Path | None:
    """A memory group of the kernel below this process's own; None where none can be made."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, own = line.split(":", 2)
        for controller, mount, file in _GROUPS:
            if controller not in controllers.split(","):
                continue
            group = Path(f"{mount}{own}") / f"hostile-{os.getpid()}"
            with contextlib.suppress(OSError):
                group.mkdir(exist_ok=True)
                try:
                    (group / file).write_text(str(limit_mb << 20))
                    return group
                except OSError:
                    group.rmdir()
    return None


def _wait(server: Server) -> None:
    until = time.monotonic() + _START_S
    while not healthy(server.url, timeout_s=5.0):
        if not server.alive or time.monotonic() > until:
            raise RuntimeError(f"the server did not start:\n{server.log.read_text()[-2000:]}")
        time.sleep(0.1)


def _end(server: Server) -> None:
    server.process.terminate()
    try:
        server.process.wait(timeout=10.0)
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait()
    if server.group is None:
        return
    while pids := (server.group / "cgroup.procs").read_text().split():
        for pid in pids:  # the sandbox of a server that was killed
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.1)
    server.group.rmdir()


@contextmanager
def child(target: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """Run a function in a process of its own, which the end of the block kills.

    Its last argument is the other end of the yielded pipe.
    """
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.kill()
        process.join()


@dataclass
class Sampler:
    """Measure a server ten times a second from a thread, until the block ends.

    All processes are measured at each tenth sample, or at each one where this sampler has to
    enforce the memory limit itself.
    """

    server: Server
    server_mb: float = 0.0
    """Largest resident set of the server's process."""
    total_mb: float = 0.0
    """Largest proportional set size of all processes."""
    cpu_s: float = 0.0
    """CPU seconds of all processes in the block."""
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Sampler:
        self._before = self.server.cpu_s()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._all()

    def _run(self) -> None:
        tick = 0
        while not self._stop.wait(0.1):
            self.server_mb = max(self.server_mb, peak_mb(self.server.process.pid))
            if self.server.group is None or tick % _SLOW_TICKS == 0:
                self._all()
            tick += 1

    def _all(self) -> None:
        if self.server.alive:
            total = self.server.pss_mb()
            self.total_mb = max(self.total_mb, total)
            self.cpu_s = max(self.cpu_s, self.server.cpu_s() - self._before)
            if self.server.group is None and total > self.server.limits.memory_mb:
                self.server.process.kill()
