"""The pool of monty's processes, and the limits of each REPL."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

import pydantic_monty as monty

from env.errors import SandboxError
from env.server.sandbox.monty.prelude import prelude
from env.server.sandbox.monty.repl import MontyRepl
from env.server.sandbox.wire import clean, dump
from env.settings import LimitSettings, SandboxSettings

if TYPE_CHECKING:  # openenv takes seconds to import
    from env.models import JSONValue

_MAX_REPLS = 4096
"""Processes of one server; opening one more fails."""
_START_S = 30.0
_MAX_SUSPENSIONS = 10**9
"""Times one REPL may ask the host. Monty wants a number; a cell's time ends it long before."""


class MontyHost:
    """Opens REPLs in the interpreter monty. Thread-safe.

    Args:
        limits: Limits of every cell.
        settings: How many cells run at the same time.
        search_window: Default `window` of `search`.
        quiet_search: False makes `search` and `extract` print what they find.

    Raises:
        SandboxError: monty does not work here, or cannot do what the settings ask.
    """

    def __init__(
        self,
        limits: LimitSettings,
        settings: SandboxSettings,
        search_window: int = 0,
        quiet_search: bool = True,
    ) -> None:
        if settings.preload:
            raise SandboxError("env.sandbox.preload: the backend monty can import no modules.")
        self.enforced: tuple[str, ...] = ("monty",)
        self._limits = limits
        self._prelude = prelude(search_window, quiet_search)
        self._slots = threading.BoundedSemaphore(settings.running_cells)
        self._lock = threading.Lock()
        self._closed = False
        self._repls: weakref.WeakSet[MontyRepl] = weakref.WeakSet()
        self._pool = monty.Monty(
            min_processes=0,
            max_processes=_MAX_REPLS,
            checkout_timeout=_START_S,
            request_timeout=limits.cell_wall_s,
            max_checkouts_per_worker=1,
        )
        try:
            self._pool.__enter__()
        except (OSError, monty.MontyError) as error:
            raise SandboxError(f"The backend monty does not start: {error}") from error
        try:
            self.open("").close()
        except SandboxError:
            self.close()
            raise

    def open(self, context: JSONValue, shared_as: str | None = None) -> MontyRepl:
        """Start a REPL whose `context` is this value; one that is shared gains nothing here.

        Raises:
            SandboxError: no session could be started.
            TypeError: the value is not made of JSON types.
        """
        if self._closed:
            raise SandboxError("This sandbox host was closed.")
        dump(context)
        repl = MontyRepl(self._limits, self._checkout, self._prelude, clean(context), self._slots)
        with self._lock:
            if self._closed:
                repl.close()
                raise SandboxError("This sandbox host was closed.")
            self._repls.add(repl)
        return repl

    def close(self) -> None:
        """End every REPL and the pool of processes."""
        with self._lock:
            self._closed = True
            repls = list(self._repls)
        for repl in repls:
            repl.close()
        self._pool.__exit__(None, None, None)

    def _checkout(self) -> monty.MontySession:
        return self._pool.checkout(
            limits={
                "max_feed_duration_secs": self._limits.cell_cpu_s,
                "max_memory": self._limits.memory_mb << 20,
                "max_suspensions": _MAX_SUSPENSIONS,
            },
            os_policy={"sleep": "call_host", "random_start": {"seed": 0}},
            assert_message_annotations=False,
        )
