"""The host: one zygote, any number of REPLs, a limit on the cells that run at the same time."""

from __future__ import annotations

import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

from env.errors import SandboxError
from env.server.sandbox.boundary import compile_filter
from env.server.sandbox.repl import Repl
from env.server.sandbox.results import CellDone, SubCall
from env.server.sandbox.spawner import Spawner
from env.settings import LimitSettings, SandboxSettings

if TYPE_CHECKING:  # openenv takes seconds to import
    from env.models import JSONValue

_LIFE_CELLS = 100
"""Cells' worth of CPU after which the kernel ends a worker by itself, should the host not."""


class SandboxHost:
    """Opens REPLs. Thread-safe. Construction proves that a worker can be locked in.

    Args:
        limits: Limits of every cell.
        settings: How many cells run at the same time.
        search_window: Default `window` of `search`.
        quiet_search: False makes `search` and `extract` print what they find.

    Raises:
        SandboxError: seccomp cannot be had here; nothing may run then.
    """

    _seccomp = True
    """False only in a subclass of the tests: the negative control."""

    def __init__(
        self,
        limits: LimitSettings,
        settings: SandboxSettings,
        search_window: int = 0,
        quiet_search: bool = True,
    ) -> None:
        self._limits = limits
        self._options: dict[str, Any] = {
            "memory_bytes": limits.memory_mb << 20,
            "life_cpu_s": int(limits.cell_cpu_s * _LIFE_CELLS) + 10,
            "stdout_chars": limits.observation_chars,
            "search_window": search_window,
            "quiet_search": quiet_search,
        }
        self._bpf = compile_filter() if self._seccomp else None
        self._needed = ("no_new_privs", "rlimits", *(("seccomp",) if self._seccomp else ()))
        self._slots = threading.BoundedSemaphore(settings.running_cells)
        self._lock = threading.Lock()
        self._closed = False
        self._repls: weakref.WeakSet[Repl] = weakref.WeakSet()
        self._zygote = Spawner(self._bpf)
        try:
            proof = self.open("")
        except SandboxError:
            self.close()
            raise
        self.enforced: tuple[str, ...] = proof.enforced
        proof.close()

    def open(self, context: JSONValue) -> Repl:
        """Start a REPL whose `context` is this value: a text, or {paper_id: text}.

        Raises:
            SandboxError: no process could be started.
        """
        options = {**self._options}
        repl = Repl(self._limits, options, context, self._living_zygote, self._slots, self._needed)
        with self._lock:
            if self._closed:
                repl.close()
                raise SandboxError("This sandbox host was closed.")
            self._repls.add(repl)
        return repl

    def close(self) -> None:
        """End every REPL and the zygote; returns when no process is left."""
        with self._lock:
            self._closed = True
            repls = list(self._repls)
        for repl in repls:
            repl.close()
        self._zygote.close()

    def _living_zygote(self) -> Spawner:
        """The zygote; a new one when it died. REPLs of the old one are lost."""
        with self._lock:
            if self._closed:
                raise SandboxError("This sandbox host was closed.")
            if not self._zygote.alive:
                self._zygote.close()
                self._zygote = Spawner(self._bpf)
            return self._zygote


class Sandbox:
    """One REPL with a host of its own: `with Sandbox(limits) as repl: repl.run("1 + 1")`.

    Args:
        limits: Limits of every cell.
        context: The value of `context`.
    """

    def __init__(self, limits: LimitSettings | None = None, context: JSONValue = "") -> None:
        self._host = SandboxHost(limits or LimitSettings(), SandboxSettings(running_cells=1))
        self._repl = self._host.open(context)

    def __enter__(self) -> Repl:
        return self._repl

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, code: str) -> CellDone | SubCall:
        """As `Repl.run`."""
        return self._repl.run(code)

    def resume(self, value: JSONValue) -> CellDone | SubCall:
        """As `Repl.resume`."""
        return self._repl.resume(value)

    def close(self) -> None:
        """End the process and its zygote."""
        self._host.close()
