"""One REPL as the server sees it: run code, answer sub-calls, replace a broken process.

All clocks are here, outside the worker; CPU time comes from the kernel. A soft limit is SIGALRM:
the worker raises inside the cell and keeps its variables. A hard limit is SIGKILL and a new
worker. Between cells the worker is stopped.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from env.errors import SandboxError
from env.server.sandbox.process import WorkerGoneError, WorkerProcess
from env.server.sandbox.results import (
    MAX_FINALS,
    UNSET,
    CellDone,
    CellError,
    SubCall,
    Unset,
    cell_done,
    sub_call,
)
from env.server.sandbox.spawner import Spawner
from env.server.sandbox.wire import BadFrameError, JSONValue, pack
from env.settings import LimitSettings

_GRACE_CPU_S = 0.5
"""CPU seconds from the soft limit to SIGKILL."""
_GRACE_WALL_S = 2.0
"""Wall seconds from the soft limit to SIGKILL, for a cell that does not compute."""
_STARVED_S = 20.0
"""The same for a cell that waits for a processor."""
_NUDGE_S = 0.1
"""Seconds between two soft signals: a callback may swallow one."""
_START_S = 30.0


@dataclass
class _Cell:
    """Resources and results of the current run of code, so far."""

    number: int
    cpu_start: float
    cpu_s: float = 0.0
    wall_used: float = 0.0
    resumed_at: float = 0.0
    reading_s: float = 0.0
    """Value of the worker's `reading_s` at `resumed_at`."""
    soft: CellError | None = None
    soft_cpu: float = 0.0
    soft_wall: float = 0.0
    final: JSONValue | Unset = UNSET
    finals: int = 0


class _HardLimitError(Exception):
    """The grace period after the soft limit is over."""


class Repl:
    """One REPL. `run` and `resume` block, one thread at a time; any thread may call `close`.

    Made by `SandboxHost.open`.

    Args:
        limits: CPU, wall and memory limits.
        origin: Returns the process to fork a worker from, and the first message to that worker.
        slots: Limits the cells that run at the same time, over all REPLs.
        needed: Layers that must hold before any code runs.
    """

    def __init__(
        self,
        limits: LimitSettings,
        origin: Callable[[], tuple[Spawner, bytes]],
        slots: threading.Semaphore,
        needed: tuple[str, ...],
    ) -> None:
        self._limits = limits
        self._origin = origin
        self._slots = slots
        self._needed = needed
        self._lock = threading.Lock()
        self._closed = False
        self._pending = False
        self._number = 0
        self._cell: _Cell | None = None
        self._worker: WorkerProcess | None = None
        self.enforced: tuple[str, ...] = self._start()

    def run(self, code: str) -> CellDone | SubCall:
        """Run one cell to its end or to its first sub-call.

        Raises:
            SandboxError: the machinery failed, and the results of the cell are lost.
        """
        with self._lock:
            worker = self._living()
            if self._pending:
                raise SandboxError("run() while a sub-call waits for resume().")
            self._number += 1
            message = pack(("exec", self._number, code))
            with self._slots:
                self._cell = _Cell(self._number, worker.cpu_s())
                return self._go_on(worker, self._cell, message)

    def resume(self, value: JSONValue) -> CellDone | SubCall:
        """Return the value of the pending sub-call; run to the end or to the next sub-call.

        Raises:
            SandboxError: as in `run`.
        """
        with self._lock:
            worker = self._living()
            if self._cell is None or not self._pending:
                raise SandboxError("resume() without a pending sub-call.")
            message = pack(("return", self._cell.number, value))
            with self._slots:
                return self._go_on(worker, self._cell, message)

    def close(self) -> None:
        """Kill the worker. A `run` in progress raises SandboxError."""
        self._closed = True
        worker = self._worker
        if worker is not None:
            with contextlib.suppress(SandboxError):
                worker.signal(signal.SIGKILL)
        with self._lock:
            self._drop()

    def _go_on(self, worker: WorkerProcess, cell: _Cell, message: bytes) -> CellDone | SubCall:
        self._pending = False
        cell.resumed_at = cell.soft_wall = time.monotonic()
        cell.reading_s = worker.reading_s
        try:
            worker.signal(signal.SIGCONT)
            result = self._converse(worker, cell, message)
        except BadFrameError:
            return self._replace(worker, cell, "killed")
        except _HardLimitError:
            return self._replace(worker, cell, cell.soft)
        except WorkerGoneError:
            return self._replace(worker, cell, None)
        except SandboxError:
            self._drop()
            raise
        if isinstance(result, SubCall):
            self._pending = True
        worker.signal(signal.SIGSTOP)
        return result

    def _converse(self, worker: WorkerProcess, cell: _Cell, message: bytes) -> CellDone | SubCall:
        def budget() -> float:
            return self._budget(worker, cell)

        worker.send(message, budget)
        while True:
            frame = worker.receive(budget)
            if frame.number != cell.number:
                raise BadFrameError("a message of another cell")
            if frame.kind == "final":
                if cell.final is UNSET:
                    cell.final = frame.value
                cell.finals += 1
                if cell.finals > MAX_FINALS:
                    raise BadFrameError("a flood of finals")
            elif frame.kind == "call":
                cell.wall_used += self._wall(worker, cell, time.monotonic())
                return sub_call(frame.value)
            elif frame.kind == "done":
                cell.cpu_s = worker.cpu_s() - cell.cpu_start
                return self._done(worker, cell, frame.value)
            else:
                raise BadFrameError("a message out of order")

    def _done(self, worker: WorkerProcess, cell: _Cell, value: JSONValue) -> CellDone:
        done, full = cell_done(
            value, self._limits.observation_chars, cell.soft, cell.final, cell.cpu_s
        )
        if full:
            return self._replace(worker, cell, "memory", done)
        return done

    def _budget(self, worker: WorkerProcess, cell: _Cell) -> float:
        """Enforce the limits; return the seconds until the next check."""
        now = time.monotonic()
        cpu = worker.cpu_s() - cell.cpu_start
        cell.cpu_s = max(cell.cpu_s, cpu)
        wall = cell.wall_used + self._wall(worker, cell, now)
        if cell.soft is None:
            left = min(self._limits.cell_cpu_s - cpu, self._limits.cell_wall_s - wall)
            if left > 0:
                return max(left, 0.001)
            cell.soft = "cpu" if cpu >= self._limits.cell_cpu_s else "wall"
            if cell.soft == "wall" and worker.waits():
                raise BadFrameError("it reads the channel, and nobody owes it an answer")
            cell.soft_cpu, cell.soft_wall = cpu, now
        elif self._grace_is_over(worker, cpu - cell.soft_cpu, now - cell.soft_wall):
            raise _HardLimitError
        worker.signal(signal.SIGALRM)
        return _NUDGE_S

    @staticmethod
    def _wall(worker: WorkerProcess, cell: _Cell, now: float) -> float:
        """Seconds that the worker had since it was resumed.

        Excludes seconds in which it waited for the host to read its messages. Otherwise a flood
        of messages would look like a machine that is too busy.
        """
        return now - cell.resumed_at - (worker.reading_s - cell.reading_s)

    @staticmethod
    def _grace_is_over(worker: WorkerProcess, cpu_s: float, wall_s: float) -> bool:
        if cpu_s > _GRACE_CPU_S or wall_s > _STARVED_S:
            return True
        return wall_s > _GRACE_WALL_S and worker.waits()

    def _replace(
        self,
        worker: WorkerProcess,
        cell: _Cell,
        error: CellError | None,
        done: CellDone | None = None,
    ) -> CellDone:
        """End the worker and start another one; if `error` is None, the exit status decides."""
        self._cell = None
        self._worker = None
        status = worker.end()
        if self._closed:
            raise SandboxError("This REPL was closed.")
        if error is None:
            if status == -signal.SIGKILL:
                raise SandboxError("A sandbox process was killed from outside (out of memory?).")
            by_status: dict[int, CellError] = {-signal.SIGXCPU: "cpu"}
            error = by_status.get(status, "exit" if 0 <= status != _BROKEN else "killed")
        self._start()
        return CellDone(
            stdout=done.stdout if done else "",
            error=error,
            traceback=done.traceback if done else "",
            variables_lost=True,
            final=cell.final,
            cpu_s=cell.cpu_s,
            cut=done.cut if done else 0,
        )

    def _start(self) -> tuple[str, ...]:
        """Start a worker, from a new spawner if the old one dies; return the layers."""
        spawner, init = self._origin()
        try:
            return self._start_from(spawner, init)
        except SandboxError:
            if spawner.alive:
                raise
        return self._start_from(*self._origin())

    def _start_from(self, spawner: Spawner, init: bytes) -> tuple[str, ...]:
        """Fork a worker, load the context and check the layers that hold; return them."""
        worker = self._worker = WorkerProcess(spawner)
        deadline = time.monotonic() + _START_S

        def budget() -> float:
            left = deadline - time.monotonic()
            if left <= 0:
                raise SandboxError(f"A sandbox process did not start within {_START_S:.0f} s.")
            return left

        try:
            worker.send(init, budget)
            frame = worker.receive(budget)
            layers = tuple(frame.value) if isinstance(frame.value, list) else ()
            missing = [layer for layer in self._needed if layer not in layers]
            if frame.kind != "ready" or missing:
                raise SandboxError(
                    f"A sandbox process started without {', '.join(missing) or 'its report'}."
                )
            worker.signal(signal.SIGSTOP)
        except (WorkerGoneError, BadFrameError):
            self._drop()
            raise SandboxError(
                "A sandbox process did not start (the kernel refused one of its layers, or its "
                f"context needs more than memory_mb={self._limits.memory_mb})."
            ) from None
        except SandboxError:
            self._drop()
            raise
        return layers

    def _living(self) -> WorkerProcess:
        if self._closed:
            raise SandboxError("This REPL was closed.")
        if self._worker is None:
            raise SandboxError("This REPL's sandbox process is gone.")
        return self._worker

    def _drop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            with contextlib.suppress(SandboxError):
                worker.end()


_BROKEN = 70
"""Exit status of a worker that cannot continue, as in `inside/worker.py`."""
