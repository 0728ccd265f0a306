"""The host's handle on one worker process: its channel, its CPU clock, its end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable

from env.errors import SandboxError
from env.server.sandbox import usage
from env.server.sandbox.memory import Holding
from env.server.sandbox.spawner import Spawner
from env.server.sandbox.wire import Inbox, WireFrame

_LONG_NICE = 5
"""Nice value of a long cell, above the server's: it still gets 2 s of CPU beside 8 busy loops."""


class WorkerGoneError(Exception):
    """The channel is closed: the process is dead or dying."""


class WorkerProcess:
    """A forked worker. Only one thread at a time may use it, except for `signal`.

    Args:
        spawner: Process to fork the worker from.
        holding: Its entry in the ledger.
    """

    def __init__(self, spawner: Spawner, holding: Holding) -> None:
        self._spawner = spawner
        self.holding = holding
        self.pid, self._channel = spawner.fork()
        self._inbox = Inbox(self._channel)
        self._poll = select.poll()  # not select(): descriptors may exceed 1024
        self._poll.register(self._channel, select.POLLIN)
        self._guard = threading.Lock()
        self._reaped = False
        self._lowered = False
        self._meter: usage.Meter | None = None
        self.reading_s = 0.0
        """Wall seconds that the host spent reading its messages."""
        self._reading_cpu_s = 0.0

    def cpu_s(self) -> float:
        """CPU seconds of its whole life, and those of the host for reading its messages."""
        try:
            return time.clock_gettime((~self.pid << 3) | 2) + self._reading_cpu_s
        except OSError:
            return 0.0

    def held_bytes(self, now: usage.MemoryUsage, exact: bool = False) -> int:
        """Memory that its end would free, as an upper estimate.

        The first call for a spawner must come before any policy code runs in the worker.

        Args:
            now: Its figures.
            exact: Whether the estimate is not enough.
        """
        if self._meter is None:
            bare = self._spawner.measured(self.pid, now)
            own = bare.own + max(0, now.resident - bare.resident)
            self._meter = usage.Meter(self.pid, now, own, bare.exact, self.cpu_s())
        return self._meter.read(now, self.cpu_s(), exact)

    @property
    def has_sent(self) -> bool:
        """Whether the host has bytes to read from it."""
        return bool(self._poll.poll(0))

    def kill(self) -> None:
        """Kill it; the thread that uses it sees a closed channel."""
        with contextlib.suppress(SandboxError):
            self.signal(signal.SIGKILL)

    def lower(self) -> None:
        """Lower its priority for the rest of its life: server and short cells come first."""
        with self._guard:
            if not self._reaped and not self._lowered:
                self._lowered = True
                nice = os.getpriority(os.PRIO_PROCESS, 0) + _LONG_NICE
                with contextlib.suppress(OSError):  # it is gone
                    os.setpriority(os.PRIO_PROCESS, self.pid, nice)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal.

        Raises:
            SandboxError: the spawner is dead, so the process id may mean another process.
        """
        with self._guard:
            if not self._reaped:
                self._spawner.signal(self.pid, number)

    def send(self, data: bytes, budget: Callable[[], float]) -> None:
        """Write a frame; `budget` returns the seconds to wait and may raise.

        Raises:
            WorkerGoneError: the process ended.
        """
        view = memoryview(data)
        while view:
            try:
                view = view[self._channel.send(view) :]
            except BlockingIOError:
                self._poll.modify(self._channel, select.POLLOUT)
                self._poll.poll(budget() * 1000)
                self._poll.modify(self._channel, select.POLLIN)
            except ConnectionError:
                raise WorkerGoneError from None

    def receive(self, budget: Callable[[], float]) -> WireFrame:
        """Wait for a frame; `budget` as in `send`.

        Raises:
            WorkerGoneError: the process ended.
            BadFrameError: it sent something other than a frame.
        """
        while True:
            started, cpu = time.monotonic(), time.thread_time()
            frame = self._inbox.take()
            self.reading_s += time.monotonic() - started
            self._reading_cpu_s += time.thread_time() - cpu
            if frame is not None:
                return frame
            if self._poll.poll(budget() * 1000) and not self._inbox.fill():
                raise WorkerGoneError

    def end(self) -> int:
        """Kill and reap it, and close the channel.

        Returns:
            The exit status, or minus the number of the signal that ended it. If it ended before
            this call, the status is that of the earlier end.

        Raises:
            SandboxError: the spawner is dead.
        """
        with self._guard:
            if self._reaped:
                return 0
            self._reaped = True
            self._channel.close()
            self._spawner.signal(self.pid, signal.SIGKILL)
            return os.waitstatus_to_exitcode(self._spawner.reap(self.pid))
