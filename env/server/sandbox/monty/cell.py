"""One cell on the host's side: what it printed and gave, and the functions that leave monty.

The values are monty's copies of what the cell handed over. They pass through the frames of the
other backend, so both have the same limits on size and shape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pydantic_monty as monty

from env.server.sandbox.inside import traces
from env.server.sandbox.inside.calls import Calls, FinalCalled
from env.server.sandbox.inside.channel import frame
from env.server.sandbox.inside.output import Output
from env.server.sandbox.results import (
    MAX_FINALS,
    TRACE_CHARS,
    UNSET,
    CellError,
    SubCall,
    Unset,
    sub_call,
)
from env.server.sandbox.wire import BadFrameError, parse

if TYPE_CHECKING:  # openenv takes seconds to import
    from env.models import JSONValue

FUNCTIONS = (
    "llm_query",
    "llm_query_batched",
    "rlm_query",
    "rlm_query_batched",
    "FINAL",
    "SHOW_VARS",
)
"""What a cell calls on the host."""


class AskedError(Exception):
    """A sub-call was made: the cell stands still."""


class Cell:
    """What one run of code has used and given so far.

    Args:
        names: The policy's variables and their types.
        stdout_chars: Characters of stdout to keep.
    """

    def __init__(self, names: dict[str, str], stdout_chars: int) -> None:
        self.names = names
        self.output = Output(stdout_chars)
        self.running_s = 0.0
        self.final: JSONValue | Unset = UNSET
        self.asked: SubCall | None = None
        self._finals = 0
        calls = Calls(self._ask, self._finish, {})
        own = {"SHOW_VARS": self._show_vars}
        self.functions: dict[str, Callable[..., Any]] = {
            name: own.get(name) or getattr(calls, name) for name in FUNCTIONS
        }

    def answer(self, snapshot: monty.SyncSnapshot) -> Callable[[], monty.SyncSnapshot]:
        """What to do about a suspension.

        Raises:
            AskedError: wait: `asked` says for what.
            BadFrameError: the cell abuses its functions.
        """
        if isinstance(snapshot, monty.MontyComplete):
            raise BadFrameError("a cell that has ended")
        function = None
        if isinstance(snapshot, monty.FunctionSnapshot) and not snapshot.is_os_function:
            function = self.functions.get(snapshot.function_name)
        if function is None:
            return snapshot.resume_auto  # an unknown name, or a call of the system: refused
        assert isinstance(snapshot, monty.FunctionSnapshot)
        return partial(snapshot.resume, _result(function, snapshot.args, snapshot.kwargs))

    def write(self, stream: str, text: str) -> None:
        """Take what the cell prints."""
        self.output.write(text)

    def echo(self, value: Any) -> None:
        """Write the value of a last expression, as a REPL does."""
        if value is not None:
            try:
                self.output.write(f"{value!r}\n")
            except RecursionError:
                self.output.write("...\n")

    def _ask(self, fn: str, prompts: list[str], contexts: list[Any] | None) -> None:
        self.asked = sub_call(_plain("call", {"fn": fn, "prompts": prompts, "contexts": contexts}))
        raise AskedError

    def _finish(self, value: Any) -> None:
        plain = _plain("final", value)
        if self.final is UNSET:
            self.final = plain
        self._finals += 1
        if self._finals > MAX_FINALS:
            raise BadFrameError("a flood of finals")

    def _show_vars(self) -> str:
        return f"Available variables: {self.names}" if self.names else "No variables created yet."


def _result(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> monty.ExternalResult:
    """Call a function for the cell; what it raises, the cell's call raises."""
    try:
        return {"return_value": function(*args, **kwargs)}
    except FinalCalled:
        return {"exc_type": "SystemExit"}
    except TypeError as error:
        return {"exc_type": "TypeError", "message": str(error)}
    except ValueError as error:
        return {"exc_type": "ValueError", "message": str(error)}


def _plain(kind: str, value: Any) -> JSONValue:
    """JSON types only, as the other backend's channel makes them.

    Raises:
        ValueError: too large, or nested too deeply.
    """
    return parse(frame(kind, 0, value)[4:]).value


def kind(raised: monty.MontyError) -> CellError:
    """What ended the cell, but for its time: that is the caller's to know."""
    if isinstance(raised, monty.MontySyntaxError):
        return "syntax"
    inner = raised.exception()
    if isinstance(inner, MemoryError):
        return "memory"
    return "exit" if isinstance(inner, SystemExit) else "exception"


def describe(
    raised: monty.MontySyntaxError | monty.MontyRuntimeError, cells: dict[str, int], current: int
) -> str:
    """The policy's lines that led to an exception, then its type and message."""
    lines = []
    for step in raised.traceback():
        number = cells.get(step.filename)
        if number is not None:
            cell = f"cell {number}" if number != current else ""
            function = step.function_name or "<module>"
            lines.append(traces.line(step.line, cell, function, step.source_line or ""))
    message = traces.cut(raised.display("type-msg"))
    return "\n".join([*traces.shortened(lines), message])[:TRACE_CHARS]
