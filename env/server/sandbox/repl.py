"""One REPL as the server sees it: run code, answer sub-calls, replace a broken process.

All clocks are outside the worker; CPU time and own time (`clock.py`) come from the kernel. A soft
limit is SIGALRM: the worker raises inside the cell and keeps its variables. A hard limit is SIGKILL
and a new worker. Between cells, and while other cells have the slots, the worker is stopped.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from env.errors import SandboxError
from env.server.sandbox import clock
from env.server.sandbox.clock import CellClock
from env.server.sandbox.memory import Holding, Ledger
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
from env.server.sandbox.slots import Slots, SlotUse
from env.server.sandbox.spawner import Spawner
from env.server.sandbox.usage import MemoryUsage, usage
from env.server.sandbox.wire import BadFrameError, JSONValue, characters, pack
from env.settings import LimitSettings

_GRACE_CPU_S = 0.5
"""CPU seconds from the soft limit to SIGKILL."""
_GRACE_OWN_S = 2.0
"""Own seconds from the soft limit to SIGKILL, for a cell that does not compute."""
_GIVE_UP_S = 60.0
"""Seconds beside its own after which a cell that used up no limit ends as starved."""
_NUDGE_S = 0.1
"""Seconds between two soft signals: a callback may swallow one."""
_START_S = 30.0
_LONG_CPU_S = 0.03
"""CPU seconds after which a cell gets a lower priority."""


@dataclass
class _Cell:
    """Resources and results of the current run of code, so far."""

    number: int
    cpu_start: float
    cpu_s: float = 0.0
    clock: CellClock = field(default_factory=CellClock)
    turn: SlotUse = field(init=False)
    """Its use of a slot, set each time that it enters one."""
    reading_s: float = 0.0
    """Value of the worker's `reading_s` at the clock's last tick."""
    soft: CellError | None = None
    soft_cpu: float = 0.0
    soft_own: float = 0.0
    final: JSONValue | Unset = UNSET
    finals: int = 0


class _HardLimitError(Exception):
    """The grace period after the soft limit is over."""


class _StarvedError(Exception):
    """The machine did not let the cell run."""


@dataclass(frozen=True)
class Shared:
    """Slots, memory and needs that all REPLs of a host share.

    Args:
        slots: Limits the cells that run at the same time.
        ledger: Limits the memory that all REPLs hold together.
        needed: Layers that must hold before any code runs.
    """

    slots: Slots
    ledger: Ledger
    needed: tuple[str, ...]


class Repl:
    """One REPL. `run` and `resume` block, one thread at a time; any thread may call `close`.

    Made by `SandboxHost.open`.

    Args:
        limits: CPU, wall and memory limits.
        origin: Returns the process to fork a worker from, and the first message to that worker.
        shared: Slots, memory and needs of the host.
        session: Whose turn and whose share of the memory it uses; None for its own.
        answer_chars: Characters of an answer.
    """

    def __init__(
        self,
        limits: LimitSettings,
        origin: Callable[[], tuple[Spawner, bytes]],
        shared: Shared,
        session: object,
        answer_chars: int,
    ) -> None:
        self._limits = limits
        self._origin = origin
        self._slots = shared.slots
        self._ledger = shared.ledger
        self._needed = shared.needed
        self._session = self if session is None else session
        self._answer_chars = answer_chars
        self.tokens_left: int | None = None
        """Value of `budget_left()` from the next `run` or `resume` on; None for no budget."""
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
            message = pack(("exec", self._number, code, self.tokens_left))
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
            message = pack(("return", self._cell.number, value, self.tokens_left))
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
        if worker.holding.evicted:
            return self._replace(worker, cell, "evicted")
        try:
            result, full = self._in_slot(worker, cell, message)
        except BadFrameError:
            return self._replace(worker, cell, "killed")
        except _HardLimitError:
            return self._replace(worker, cell, cell.soft)
        except _StarvedError:
            return self._replace(worker, cell, "starved")
        except WorkerGoneError:
            return self._replace(worker, cell, None)
        except SandboxError:
            self._drop()
            raise
        if isinstance(result, SubCall):
            self._pending = True
        elif full:
            return self._replace(worker, cell, "memory", result)
        self._rest(worker)
        return result

    def _in_slot(
        self, worker: WorkerProcess, cell: _Cell, message: bytes
    ) -> tuple[CellDone | SubCall, bool]:
        """Run the cell in a slot; return its result, and whether its memory is full.

        A worker that will be replaced gives the slot back first: cells of other sessions need not
        wait for a fork.
        """
        cell.turn = self._slots.enter(self._session, cell.cpu_s > _LONG_CPU_S)
        try:
            # No reading of the kernel's figures: a short cell ends before anybody needs them.
            cell.clock.resume(time.monotonic(), clock.Reading(worker.cpu_s(), None, ""))
            cell.reading_s = worker.reading_s
            worker.signal(signal.SIGCONT)
            result = self._converse(worker, cell, message)
            worker.signal(signal.SIGSTOP)
            return result
        except (BadFrameError, _HardLimitError, _StarvedError):
            worker.kill()
            raise
        finally:
            self._slots.leave(cell.turn)

    def _converse(
        self, worker: WorkerProcess, cell: _Cell, message: bytes
    ) -> tuple[CellDone | SubCall, bool]:
        worker.send(message, lambda: self._budget(worker, cell, sending=True))
        while True:
            frame = worker.receive(lambda: self._budget(worker, cell))
            if frame.number != cell.number:
                raise BadFrameError("a message of another cell")
            if frame.kind == "final":
                if characters(frame.value) > self._answer_chars:
                    raise BadFrameError("an answer that is too long")
                if cell.final is UNSET:
                    cell.final = frame.value
                cell.finals += 1
                if cell.finals > MAX_FINALS:
                    raise BadFrameError("a flood of finals")
            elif frame.kind == "call":
                reading_s = worker.reading_s - cell.reading_s
                cell.clock.pause(time.monotonic(), worker.cpu_s(), reading_s)
                return sub_call(frame.value), False
            elif frame.kind == "done":
                cell.cpu_s = worker.cpu_s() - cell.cpu_start
                chars = self._limits.observation_chars
                return cell_done(frame.value, chars, cell.soft, cell.final, cell.cpu_s)
            else:
                raise BadFrameError("a message out of order")

    def _budget(self, worker: WorkerProcess, cell: _Cell, sending: bool = False) -> float:
        """Enforce the limits; return the seconds until the next check.

        Args:
            worker: the cell's worker.
            cell: the cell that runs.
            sending: whether the worker must read now.
        """
        now = time.monotonic()
        if cell.clock.due(now):
            self._tick(worker, cell, now, sending)
        cpu = worker.cpu_s() - cell.cpu_start
        cell.cpu_s = max(cell.cpu_s, cpu)
        own = cell.clock.own_s
        if cell.soft is None:
            left = self._limits.cell_cpu_s - cpu
            if left > 0 and own < self._limits.cell_wall_s:
                if cell.clock.lost_s > _GIVE_UP_S:
                    raise _StarvedError
                return min(clock.TICK_S, max(left, 0.001))
            cell.soft = "cpu" if left <= 0 else "wall"
            cell.soft_cpu, cell.soft_own = cpu, own
        elif (
            cpu - cell.soft_cpu > _GRACE_CPU_S
            or own - cell.soft_own > _GRACE_OWN_S
            or cell.clock.lost_s > _GIVE_UP_S
        ):
            raise _HardLimitError
        worker.signal(signal.SIGALRM)
        return _NUDGE_S

    def _tick(self, worker: WorkerProcess, cell: _Cell, now: float, sending: bool) -> None:
        """Look at a cell that runs for longer: its clock, its memory, its slot."""
        memory = usage(worker.pid)
        reading = clock.read(worker.pid, worker.cpu_s(), memory.state if memory else "")
        # A blocked `write` does not count as sleep: the host drains it at once.
        idle = reading.state == "S" and (sending or not worker.has_sent)
        cell.clock.tick(now, reading, worker.reading_s - cell.reading_s, idle)
        cell.reading_s = worker.reading_s
        if cell.clock.asleep:
            raise BadFrameError("it reads the channel, and nobody owes it an answer")
        self._weigh(worker, memory)
        is_long = reading.cpu_s - cell.cpu_start > _LONG_CPU_S
        if is_long:
            worker.lower()
        if cell.clock.may_yield and self._slots.is_over(cell.turn, is_long):
            worker.signal(signal.SIGSTOP)
            self._slots.give_way(cell.turn)
            cell.clock.resume(time.monotonic(), clock.read(worker.pid, worker.cpu_s()))
            worker.signal(signal.SIGCONT)

    def _weigh(self, worker: WorkerProcess, now: MemoryUsage | None) -> None:
        """Enter the worker's memory into the ledger; this may end it or another worker."""
        if now is None:
            return
        size = worker.held_bytes(now)
        if self._ledger.exceeds(worker.holding, size):
            size = worker.held_bytes(now, exact=True)
        self._ledger.note(worker.holding, size)

    def _rest(self, worker: WorkerProcess) -> None:
        """Weigh a worker that was stopped; if it was ended to make room, free its descriptor."""
        self._weigh(worker, usage(worker.pid))
        if worker.holding.evicted:
            with contextlib.suppress(SandboxError):
                worker.end()

    def _make_room(self, holding: Holding) -> None:
        """End this worker for the ledger, in any thread, and free its descriptor.

        While a cell runs, its own thread frees it: it sees a closed channel. If the worker has
        ended by itself meanwhile, its successor is not touched.
        """
        worker = self._worker
        if worker is None or worker.holding is not holding:
            return
        worker.kill()
        if self._lock.acquire(blocking=False):
            try:
                with contextlib.suppress(SandboxError):
                    worker.end()
            finally:
                self._lock.release()

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
        within = self._ledger.within_share(worker.holding)
        try:
            status = worker.end()
        finally:  # a dead spawner's workers are dead as well
            self._ledger.drop(worker.holding)
        if self._closed:
            raise SandboxError("This REPL was closed.")
        if worker.holding.evicted:
            error = "evicted"
        elif error is None and status == -signal.SIGKILL:
            if within:
                raise SandboxError("A sandbox process was killed from outside (out of memory?).")
            error = "memory"
        elif error is None:
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
        holding = Holding(self._session, self._make_room)
        self._ledger.note(holding, 0)
        try:
            worker = self._worker = WorkerProcess(spawner, holding)
        except SandboxError:
            self._ledger.drop(holding)
            raise
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
            self._rest(worker)
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
            self._ledger.drop(worker.holding)


_BROKEN = 70
"""Exit status of a worker that cannot continue, as in `inside/worker.py`."""
