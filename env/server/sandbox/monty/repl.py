"""One REPL in a session of monty: run code, answer sub-calls, replace the session when it breaks.

A time limit stops monty in the middle of what it does, so a cell that meets it always costs the
session. The clock counts the seconds in which the cell ran, not CPU seconds: monty tells no more.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pydantic_monty as monty

from env.errors import SandboxError
from env.server.sandbox.monty.cell import FUNCTIONS, AskedError, Cell, describe, kind
from env.server.sandbox.monty.prelude import LOOK, NAMES
from env.server.sandbox.results import (
    UNSET,
    CellDone,
    CellError,
    SubCall,
    without_chat_tokens,
)
from env.server.sandbox.wire import BadFrameError, clean
from env.settings import LimitSettings

if TYPE_CHECKING:  # openenv takes seconds to import
    from env.models import JSONValue


class MontyRepl:
    """One REPL. `run` and `resume` block: one thread at a time. Made by `MontyHost.open`.

    Args:
        limits: Limits of every cell.
        checkout: Gives a fresh session.
        prelude: Text to run before the first cell.
        context: The value of `context`.
        slots: Limits the cells that run at the same time, over all REPLs.

    Raises:
        SandboxError: no session could be started.
    """

    def __init__(
        self,
        limits: LimitSettings,
        checkout: Callable[[], monty.MontySession],
        prelude: str,
        context: JSONValue,
        slots: threading.Semaphore,
    ) -> None:
        self._limits = limits
        self._checkout = checkout
        self._prelude = prelude
        self._context = context
        self._slots = slots
        self._lock = threading.Lock()
        self._closed = False
        self._session: monty.MontySession | None = None
        self._fed = 0
        """Sources that the session was given; monty numbers them."""
        self._cells: dict[str, int] = {}
        """Which cell each of them is, by its name in tracebacks."""
        self._names: dict[str, str] = {}
        """Variables and their types after the last cell."""
        self._helpers: dict[str, str] = {}
        self._pending: tuple[Cell, monty.FunctionSnapshot] | None = None
        self._start()

    def run(self, code: str) -> CellDone | SubCall:
        """Run one cell to its end or to its first sub-call.

        Raises:
            SandboxError: the machinery failed; what the cell did is lost.
        """
        with self._lock:
            session = self._living()
            if self._pending is not None:
                raise SandboxError("run() while a sub-call waits for resume().")
            self._cells[f"<python-input-{self._fed}>"] = len(self._cells) + 1
            self._fed += 1
            cell = Cell(_own(self._names), self._limits.observation_chars)
            start = partial(
                session.feed_start,
                clean(code),
                external_lookup=cell.functions,
                print_callback=cell.write,
            )
            with self._slots:
                return self._go_on(cell, start)

    def resume(self, value: JSONValue) -> CellDone | SubCall:
        """Give the pending sub-call its value and run on, to the end or to the next one.

        Raises:
            SandboxError: as in `run`.
        """
        with self._lock:
            self._living()
            if self._pending is None:
                raise SandboxError("resume() without a pending sub-call.")
            (cell, snapshot), self._pending = self._pending, None
            with self._slots:
                return self._go_on(cell, partial(snapshot.resume, {"return_value": clean(value)}))

    def close(self) -> None:
        """End it; a `run` in progress comes to its limit first."""
        self._closed = True
        with self._lock:
            self._drop()

    def _go_on(self, cell: Cell, step: Callable[[], monty.SyncSnapshot]) -> CellDone | SubCall:
        start = time.monotonic() - cell.running_s
        error: CellError | None = None
        trace = ""
        try:
            while not isinstance(snapshot := step(), monty.MontyComplete):
                if self._is_over(start):  # monty's own clock stands while the host is asked
                    raise BadFrameError("it asks the host without end")
                step = cell.answer(snapshot)
            cell.echo(snapshot.output)
        except AskedError:
            cell.running_s = time.monotonic() - start
            assert cell.asked is not None
            assert isinstance(snapshot, monty.FunctionSnapshot)
            self._pending = cell, snapshot
            return cell.asked
        except (monty.MontySyntaxError, monty.MontyRuntimeError) as raised:
            error = kind(raised)
            trace = describe(raised, self._cells, len(self._cells))
            if isinstance(raised.exception(), TimeoutError) and self._is_over(start):
                error = "cpu"
        except monty.MontyCrashedError as raised:
            if "SIGKILL" in str(raised) and not raised.timed_out and not self._is_over(start):
                self._drop()
                raise SandboxError("A monty process was killed from outside.") from None
            error = "cpu" if self._is_over(start) else "killed"
        except (monty.MontyError, BadFrameError, RuntimeError):
            error = "cpu" if self._is_over(start) else "killed"
        cell.running_s = time.monotonic() - start
        return self._end(cell, error, trace)

    def _end(self, cell: Cell, error: CellError | None, trace: str) -> CellDone:
        """The cell's result; a session that is broken or full makes way for a new one."""
        lost = error in ("cpu", "killed")
        if not lost and (fault := self._look()) is not None:
            error, lost = fault, True
        if error == "exit" and cell.final is not UNSET:
            error, trace = None, ""  # how FINAL ends a cell
        if lost:
            self._drop()
            if self._closed:
                raise SandboxError("This REPL was closed.")
            self._start()
        return CellDone(
            stdout=without_chat_tokens(cell.output.text()),
            error=error,
            traceback="" if error in ("cpu", "killed") else without_chat_tokens(trace),
            new_names=[name for name in _own(self._names) if name not in cell.names][:200],
            variables_lost=lost,
            final=cell.final,
            cpu_s=cell.running_s,
            cut=cell.output.cut,
        )

    def _is_over(self, start: float) -> bool:
        return time.monotonic() - start >= self._limits.cell_cpu_s

    def _look(self) -> CellError | None:
        """Read the names there are, and put back helpers that the cell replaced.

        Returns:
            Why the session cannot go on: it is full, or it does not answer as it must.
        """
        try:
            names = self._types()
            if any(names.get(name) != type_ for name, type_ in self._helpers.items()):
                self._feed(self._prelude, {"context": self._context})
                names = self._types()
        except monty.MontyRuntimeError as raised:
            return "memory" if isinstance(raised.exception(), MemoryError) else "killed"
        except (monty.MontyError, RuntimeError):
            return "killed"
        self._names = names
        return None

    def _types(self) -> dict[str, str]:
        """The variables by name with their types; none when the cell broke the look itself."""
        try:
            names = self._feed("_types(locals())", {})
        except monty.MontyRuntimeError as raised:
            if isinstance(raised.exception(), (MemoryError, TimeoutError)):
                raise
            return {}
        items = names.items() if type(names) is dict else ()
        return {name: type_ for name, type_ in items if type(name) is type(type_) is str}

    def _feed(self, code: str, inputs: dict[str, JSONValue]) -> object:
        """Run text of our own, without functions of the host."""
        session = self._living()
        self._fed += 1
        return session.feed_run(code, inputs=inputs, print_callback=lambda stream, text: None)

    def _start(self) -> None:
        self._session = self._checkout()
        self._fed, self._cells = 0, {}
        try:
            self._session.__enter__()
            self._feed(LOOK, {})
            self._feed(self._prelude, {"context": self._context})
            self._names = self._types()
        except (TimeoutError, OSError, RuntimeError, monty.MontyError) as error:
            self._drop()
            raise SandboxError(
                f"A monty process did not come up: {error}. Does memory_mb="
                f"{self._limits.memory_mb} hold its context?"
            ) from None
        self._helpers = {name: self._names[name] for name in NAMES}

    def _living(self) -> monty.MontySession:
        if self._closed:
            raise SandboxError("This REPL was closed.")
        if self._session is None:
            raise SandboxError("This REPL's monty process is gone.")
        return self._session

    def _drop(self) -> None:
        session, self._session = self._session, None
        self._pending = None
        if session is not None:
            with contextlib.suppress(RuntimeError, monty.MontyError):  # it is over already
                session.__exit__(None, None, None)


def _own(names: dict[str, str]) -> dict[str, str]:
    """The policy's variables among those of the session."""
    given = {*NAMES, *FUNCTIONS}
    return {
        name: type_
        for name, type_ in names.items()
        if name not in given and not name.startswith("_") and type_ != "module"
    }
