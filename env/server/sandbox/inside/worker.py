"""One REPL: runs cells for the host until its channel closes.

Nothing here is a guard: policy code can reach all of it. Damage stays in its own REPL, because
the host trusts no frame and the kernel allows no way out.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import mmap
import os
import random
import signal
import sys
import threading
import time
import types
import warnings
from collections.abc import Iterator
from typing import Any

from env.ranking import near

from . import confine, library, traces
from .calls import Calls, FinalCalled
from .channel import Channel, frame
from .output import Output
from .reading import Reader

BROKEN = 70
"""Exit status of a worker that cannot continue."""

_BALLAST = 24 << 20
"""Bytes of address space reserved for the work after a cell that filled its memory."""

_HEADROOM = 8 << 20
"""Bytes that must be free besides the ballast for the next cell to start."""


class CellStopped(BaseException):
    """The host's soft limit; not an Exception, so that no ordinary handler catches it."""


def main(config: dict[str, Any]) -> None:
    """Confine this process, report its layers, and run cells."""
    channel = Channel()
    init = channel.receive()
    if not init:
        return
    _, options, *sent = init
    context = sent[0] if sent else config["context"]
    memory = config["base_bytes"] + _BALLAST + options["memory_bytes"]
    repl = _Repl(channel, context, options)
    layers = confine.harden_worker(
        config["bpf"], config["parent_pid"], memory, options["life_cpu_s"]
    )
    channel.send(frame("ready", 0, config["layers"] + layers))
    while message := channel.receive():
        kind, number, code, tokens_left = message
        if kind == "exec":
            repl.run(number, code, tokens_left)


class _Repl:
    """The namespace of one REPL, and its restoration after each cell."""

    def __init__(self, channel: Channel, context: Any, options: dict[str, Any]) -> None:
        self._channel = channel
        self._ballast = _reserve(_BALLAST)
        self._number = 0
        self._tokens_left: int | None = None
        self._inside = False
        self._on_wire = False
        self._stop_wanted = False
        self._stopped = False
        self._cells: dict[str, list[str]] = {}
        self._output = Output(options["stdout_chars"])
        self._answer_chars: int = options["answer_chars"]
        module = types.ModuleType("__main__")
        self._variables = module.__dict__
        self._variables["__builtins__"] = builtins
        calls = Calls(self._ask, self._finish, self._variables)
        reader = Reader(
            options["search_window"],
            options["passage_chars"],
            options["span_chars"],
            calls.order if options["ordered"] else None,
        )
        self._reserved: dict[str, Any] = {
            "context": context,
            "search": reader.search,
            "rank": reader.rank,
            "near": near,
            "list_papers": reader.list_papers,
            "extract": reader.extract,
            "llm_query": calls.llm_query,
            "llm_query_batched": calls.llm_query_batched,
            "rlm_query": calls.rlm_query,
            "rlm_query_batched": calls.rlm_query_batched,
            "FINAL": calls.FINAL,
            "FINAL_VAR": calls.FINAL_VAR,
            "SHOW_VARS": self._show_vars,
            "budget_left": self._budget_left,
        }
        self._variables.update(self._reserved, question=options["question"])
        self._hidden = set(self._variables)
        sys.modules["__main__"] = module
        library.replace_pools()
        time.sleep = _refuse_sleep  # type: ignore[assignment]
        random.seed(0)
        sys.stdin = None
        sys.stdout = sys.stderr = self._output
        sys.displayhook = self._display
        warnings.formatwarning = traces.format_warning
        self._builtins = dict(vars(builtins))
        self._modules = dict(sys.modules)
        self._recursion = sys.getrecursionlimit()
        self._thresholds = gc.get_threshold()
        signal.signal(signal.SIGALRM, self._soft_limit)

    def run(self, number: int, code: str, tokens_left: int | None) -> None:
        """Run one cell and send its result."""
        self._number = number
        self._tokens_left = tokens_left
        self._stop_wanted = self._stopped = False
        self._output.clear()
        before = set(self._variables)
        error, trace = "exception", ""
        with contextlib.suppress(BaseException):  # the limit was reached while it was described
            error, trace = self._execute(code)
        self._inside = False
        self._ballast.close()
        if error == "memory":
            gc.collect()
        new = [
            name
            for name, value in self._variables.items()
            if name not in before and _is_told(name) and not isinstance(value, types.ModuleType)
        ]
        self._restore()
        result = {
            "stdout": self._output.text(),
            "cut": self._output.cut,
            "error": "stopped" if self._stopped else error or None,
            "traceback": trace,
            "new": [name for name in new if len(name) <= 200][:200],
            "full": self._is_full(),
        }
        self._channel.send(frame("done", number, result))

    def _execute(self, code: str) -> tuple[str, str]:
        filename = f"<cell {len(self._cells) + 1}>"
        self._cells[filename] = code.split("\n")
        try:
            try:
                self._inside = True
                for part in traces.compile_cell(code, filename):
                    exec(part, self._variables)
            finally:
                self._inside = False
            return "", ""
        except FinalCalled:
            return "", ""
        except BaseException as error:
            if isinstance(error, MemoryError):
                self._ballast.close()
            kind = _kind(error)
            # Formatting runs the policy's own __str__: still under the limits of the cell.
            self._inside = kind != "stopped"
            return kind, traces.describe(error, self._cells, filename)

    def _restore(self) -> None:
        """Restore objects that a cell may have replaced."""
        sys.settrace(None)
        sys.setprofile(None)
        threading.settrace(None)
        threading.setprofile(None)
        sys.setrecursionlimit(self._recursion)
        live = builtins.__dict__
        if live != self._builtins:
            live.clear()
            live.update(self._builtins)
        if sys.modules != self._modules:
            sys.modules.clear()
            sys.modules.update(self._modules)
        sys.stdout = sys.stderr = self._output
        sys.displayhook = self._display
        self._variables["__builtins__"] = builtins
        self._variables.update(self._reserved)
        gc.callbacks.clear()
        gc.set_threshold(*self._thresholds)
        gc.enable()

    def _is_full(self) -> bool:
        """Whether the variables leave too little memory for another cell."""
        try:
            self._ballast = _reserve(_BALLAST)
            _reserve(_HEADROOM).close()
        except (OSError, MemoryError):
            return True
        return False

    def _ask(self, name: str, prompts: list[str], contexts: list[Any] | None) -> Any:
        data = frame("call", self._number, {"fn": name, "prompts": prompts, "contexts": contexts})
        with self._wire():
            self._channel.send(data)
            message = self._channel.receive()
        if len(message) != 4:
            os._exit(BROKEN)
        self._tokens_left = message[3]
        return message[2]

    def _finish(self, value: Any) -> None:
        data = frame("final", self._number, value, self._answer_chars)
        with self._wire():
            self._channel.send(data)

    @contextlib.contextmanager
    def _wire(self) -> Iterator[None]:
        """Delay the soft limit: a frame is sent whole, and a call gets its answer."""
        self._on_wire = True
        yield
        self._on_wire = False
        if self._stop_wanted:
            self._stop()

    def _soft_limit(self, signum: int, stack: Any) -> None:
        if not self._inside:
            return
        if self._on_wire:
            self._stop_wanted = True
        else:
            self._stop()

    def _stop(self) -> None:
        self._stop_wanted = False
        self._stopped = True
        raise CellStopped

    def _display(self, value: Any) -> None:
        if value is not None:
            self._variables["_"] = value
            self._output.write(repr(value) + "\n")

    def _show_vars(self) -> str:
        shown = {
            name: type(value).__name__
            for name, value in self._variables.items()
            if name not in self._hidden and _is_told(name)
        }
        return f"Available variables: {shown}" if shown else "No variables created yet."

    def _budget_left(self) -> float:
        """Tokens that are left to all agents together; infinite without a budget."""
        return float("inf") if self._tokens_left is None else self._tokens_left


def _is_told(name: object) -> bool:
    """Whether a key of the variables is a public name; `globals()` takes keys of any kind."""
    return isinstance(name, str) and name.isidentifier() and not name.startswith("_")


def _reserve(size: int) -> mmap.mmap:
    """Reserved address space; it is never touched and costs no memory."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _kind(error: BaseException) -> str:
    if isinstance(error, CellStopped):
        return "stopped"
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, SystemExit):
        return "exit"
    return "syntax" if isinstance(error, traces.CellSyntaxError) else "exception"


def _refuse_sleep(seconds: float) -> None:
    raise PermissionError("sleep is refused: nothing here needs waiting")
