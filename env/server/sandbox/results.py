"""Results of a cell: plain values, independent of any process."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, get_args

from env.chat_tokens import without_chat_tokens
from env.server.sandbox.wire import BadFrameError, JSONValue

SubCallName = Literal["llm_query", "llm_query_batched", "rlm_query", "rlm_query_batched", "rank"]

CellError = Literal[
    "exception", "syntax", "calls", "cpu", "wall", "memory", "evicted", "exit", "killed", "starved"
]
"""`calls`: the tree stopped it, since the sub-calls of its episode were used up.
`evicted`: the server was short of memory or descriptors, and this REPL or its session held most.
`exit`: it ended its interpreter. `killed`: it crashed it, slept, or violated the protocol.
`starved`: the machine did not let it run; not the policy's fault."""


class Unset(Enum):
    """Type of `UNSET`, which means that FINAL was not called (None is an answer)."""

    UNSET = "UNSET"


UNSET = Unset.UNSET


@dataclass(frozen=True)
class SubCall:
    """The cell's request to other frames, or for the order of passages (`rank`, whose prompts are
    the question and the passages). The cell is suspended until `Repl.resume`."""

    fn: SubCallName
    prompts: list[str]
    contexts: list[JSONValue] | None
    """One per prompt, or None if the call had no contexts."""


@dataclass(frozen=True)
class CellDone:
    """The end of a cell."""

    stdout: str
    """At most `observation_chars` characters."""
    error: CellError | None = None
    traceback: str = ""
    """Lines of the policy's own code, then the exception."""
    new_names: list[str] = field(default_factory=list)
    variables_lost: bool = False
    """The interpreter was replaced: it has only `context` and the functions."""
    final: JSONValue | Unset = UNSET
    """The value of the first FINAL of the cell."""
    cpu_s: float = 0.0
    cut: int = 0
    """Characters that were cut from the end of stdout."""


_SUB_CALLS = get_args(SubCallName)

_ERRORS = (None, "exception", "syntax", "memory", "exit", "stopped")
"""Errors that a worker may report; `stopped` is a limit, and the host knows which one."""

TRACE_CHARS = 4000
_NAME_CHARS = 64 * 1024
"""Limit of the characters of all new names: an honest worker sends 200 names."""
MAX_FINALS = 8
"""Limit for one cell: the first FINAL counts, and code that catches its end may call it again."""


def sub_call(value: JSONValue) -> SubCall:
    """Check a worker's sub-call.

    Raises:
        BadFrameError: no honest worker sends this.
    """
    fn, prompts, contexts = _fields(value, "fn", "prompts", "contexts")
    if fn not in _SUB_CALLS or not _texts(prompts) or not prompts:
        raise BadFrameError("a bad call")
    if contexts is not None and (type(contexts) is not list or len(contexts) != len(prompts)):
        raise BadFrameError("a bad call")
    if len(prompts) != 1 and not fn.endswith("batched") and fn != "rank":
        raise BadFrameError("a bad call")
    return SubCall(fn, prompts, contexts)


def cell_done(
    value: JSONValue, stdout_chars: int, soft: CellError | None, final: JSONValue, cpu_s: float
) -> tuple[CellDone, bool]:
    """Check a worker's report of its cell, and complete it.

    Args:
        value: The report.
        stdout_chars: Limit of its characters of stdout.
        soft: The soft limit that was signalled, or None.
        final: The value of FINAL, or UNSET.
        cpu_s: CPU seconds as the host measured them.

    Returns:
        The result, and whether the worker's memory is full, so that it must be replaced.

    Raises:
        BadFrameError: no honest worker sends this.
    """
    names = ("stdout", "cut", "error", "traceback", "new", "full")
    stdout, cut, error, trace, new, full = _fields(value, *names)
    honest = (
        type(stdout) is str
        and len(stdout) <= stdout_chars
        and type(cut) is int
        and cut >= 0
        and error in _ERRORS
        and type(trace) is str
        and len(trace) <= TRACE_CHARS
        and _texts(new)
        and sum(map(len, new)) <= _NAME_CHARS
        and all(name.isidentifier() for name in new)
        and type(full) is bool
    )
    if not honest or (error == "stopped" and soft is None):
        raise BadFrameError("a bad report")
    done = CellDone(
        stdout=without_chat_tokens(stdout),
        error=soft if error == "stopped" else error,
        traceback=without_chat_tokens(trace),
        new_names=new,
        final=final,
        cpu_s=cpu_s,
        cut=cut,
    )
    return done, full


def _fields(value: JSONValue, *names: str) -> tuple[JSONValue, ...]:
    if type(value) is not dict or set(value) != set(names):
        raise BadFrameError("wrong fields")
    return tuple(value[name] for name in names)


def _texts(value: JSONValue) -> bool:
    return type(value) is list and all(type(item) is str for item in value)
