"""The systems that `benchmarks/sandbox.py` measures, behind one small interface.

Each is used as its own documentation shows, with the limits it has by default. Peers that are not
installed are left out.
"""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import metadata
from typing import Any, Protocol

from env.server.sandbox import SandboxHost, SubCall
from env.settings import LimitSettings, SandboxSettings

GROUP = 8
"""Episodes that share one context, as in training."""


class Session(Protocol):
    """One living interpreter with `context`, `llm_query` and `FINAL`."""

    def run(self, code: str) -> object:
        """Run a cell to its end; sub-calls are answered at once."""

    def close(self) -> None:
        """Free it."""


class Peer(Protocol):
    """One way to run Python for a policy."""

    def open(self, context: str) -> Session:
        """Start an interpreter."""


def _answer(prompt: object) -> str:
    return "b"


class _Repl:
    def __init__(self, host: SandboxHost, context: str, shared_as: str | None) -> None:
        self._repl = host.open(context, shared_as)

    def run(self, code: str) -> object:
        event = self._repl.run(code)
        while isinstance(event, SubCall):
            event = self._repl.resume("b")
        if event.error is not None:
            raise RuntimeError(event.traceback or event.error)
        return event

    def close(self) -> None:
        self._repl.close()


class _Sandbox:
    """This project's, each worker sent its context, or forked from one that has it."""

    def __init__(self, host: SandboxHost, shared: bool) -> None:
        self._host = host
        self._shared = shared
        self._opened = itertools.count()

    def open(self, context: str) -> Session:
        number = next(self._opened) // GROUP
        return _Repl(self._host, context, f"{len(context)}-{number}" if self._shared else None)


class _Names:
    def __init__(self, context: str) -> None:
        self._names = {"context": context, "llm_query": _answer, "FINAL": _answer}

    def run(self, code: str) -> object:
        exec(code, self._names)
        return None

    def close(self) -> None:
        self._names.clear()


class _InProcess:
    """`exec` in this process: no boundary at all."""

    def open(self, context: str) -> Session:
        return _Names(context)


class _Interpreter:
    def __init__(self, executor: Any, context: str) -> None:
        self._executor = executor
        executor.send_variables({"context": context})
        executor.send_tools({"llm_query": _answer, "FINAL": _answer})

    def run(self, code: str) -> object:
        return self._executor(code)

    def close(self) -> None:
        self._executor.state.clear()


class _Smolagents:
    """An interpreter of the syntax tree in this process."""

    def open(self, context: str) -> Session:
        from smolagents.local_python_executor import LocalPythonExecutor

        return _Interpreter(LocalPythonExecutor([]), context)


class _Feed:
    def __init__(self, pool: Any, context: str) -> None:
        from pydantic_monty import CollectString

        self._output = CollectString
        self._checkout = pool.checkout()
        self._session = self._checkout.__enter__()
        self._session.feed_run("0", inputs={"context": context})

    def run(self, code: str) -> object:
        return self._session.feed_run(
            code,
            external_lookup={"llm_query": _answer, "FINAL": _answer},
            print_callback=self._output(),
        )

    def close(self) -> None:
        self._checkout.__exit__(None, None, None)


class _Monty:
    """An interpreter in Rust, one process per session."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def open(self, context: str) -> Session:
        return _Feed(self._pool, context)


@contextmanager
def _sandbox(shared: bool) -> Iterator[Peer]:
    host = SandboxHost(LimitSettings(), SandboxSettings())
    try:
        yield _Sandbox(host, shared)
    finally:
        host.close()


@contextmanager
def _in_process() -> Iterator[Peer]:
    with redirect_stdout(io.StringIO()):
        yield _InProcess()


@contextmanager
def _smolagents() -> Iterator[Peer]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield _Smolagents()


@contextmanager
def _monty() -> Iterator[Peer]:
    from pydantic_monty import Monty

    with Monty(max_processes=1000) as pool:
        yield _Monty(pool)


def installed() -> dict[str, Callable[[], Any]]:
    """Name with version -> context manager that gives the system, for all that are here."""
    found: dict[str, Callable[[], Any]] = {
        "sandbox": lambda: _sandbox(shared=False),
        f"sandbox, groups of {GROUP}": lambda: _sandbox(shared=True),
        "`exec` in process": _in_process,
    }
    for package, make in (("smolagents", _smolagents), ("pydantic-monty", _monty)):
        try:
            found[f"{package} {metadata.version(package)}"] = make
        except metadata.PackageNotFoundError:
            continue
    return found
