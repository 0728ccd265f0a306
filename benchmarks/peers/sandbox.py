"""The systems that `benchmarks/sandbox.py` measures, behind one small interface.

Peers' sandboxes were measured beside it up to commit 80dd4ef (docs/measurements.md).
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial

from env.server.sandbox import SandboxHost, SubCall
from env.settings import LimitSettings, SandboxSettings

GROUP = 8
"""Episodes that share one context, as in training."""


@dataclass(frozen=True)
class Session:
    """One living interpreter with `context`, `llm_query` and `FINAL`."""

    run: Callable[[str], object]
    """Runs a cell to its end and answers its sub-calls at once."""
    close: Callable[[], object]


Open = Callable[[str], Session]
"""Starts an interpreter with this context."""


def _answer(prompt: object) -> str:
    return "b"


@contextmanager
def _sandbox(shared: bool) -> Iterator[Open]:
    """This project's sandbox; a worker receives its context, or is forked from one that has it."""
    host = SandboxHost(LimitSettings(), SandboxSettings())
    opened = itertools.count()

    def start(context: str) -> Session:
        number = next(opened) // GROUP
        repl = host.open(context, f"{len(context)}-{number}" if shared else None)

        def run(code: str) -> object:
            event = repl.run(code)
            while isinstance(event, SubCall):
                event = repl.resume("b")
            if event.error is not None:
                raise RuntimeError(event.traceback or event.error)
            return event

        return Session(run, repl.close)

    try:
        yield start
    finally:
        host.close()


@contextmanager
def _in_process() -> Iterator[Open]:
    """`exec` in this process, without any boundary."""

    def start(context: str) -> Session:
        names = {"context": context, "llm_query": _answer, "FINAL": _answer}
        return Session(lambda code: exec(code, names), names.clear)

    with redirect_stdout(io.StringIO()):
        yield start


def systems() -> dict[str, Callable[[], AbstractContextManager[Open]]]:
    """Context manager of each system by its name."""
    return {
        "sandbox": partial(_sandbox, shared=False),
        f"sandbox, groups of {GROUP}": partial(_sandbox, shared=True),
        "`exec` in process": _in_process,
    }
