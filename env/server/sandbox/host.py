"""The host: one zygote, any number of REPLs, a limit on the cells that run at the same time."""

from __future__ import annotations

import importlib.util
import os
import threading
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from env.errors import SandboxError
from env.server.sandbox.boundary import compile_filter
from env.server.sandbox.repl import Repl
from env.server.sandbox.results import CellDone, SubCall
from env.server.sandbox.spawner import Spawner, Zygote
from env.server.sandbox.templates import Templates
from env.server.sandbox.wire import pack
from env.settings import LimitSettings, SandboxSettings

if TYPE_CHECKING:  # openenv takes seconds to import
    from env.models import JSONValue

_LIFE_CELLS = 100
"""Cells' worth of CPU after which the kernel ends a worker by itself, should the host not."""


class SandboxHost:
    """Opens REPLs. Thread-safe. Construction proves that a worker can be locked in.

    Args:
        limits: Limits of every cell.
        settings: How many cells run at the same time, how many contexts are held ready, and what
            is imported beside the standard library.
        search_window: Default `window` of `search`.
        quiet_search: False makes `search` and `extract` print what they find.

    Raises:
        SandboxError: seccomp cannot be had here, or a module to preload cannot be imported.
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
        self._templates = Templates(settings.templates, settings.templates_mb << 20)
        self._preload = _folders(settings.preload)
        self._zygote = Zygote(self._bpf, self._preload)
        try:
            proof = self.open("")
        except SandboxError:
            self.close()
            raise
        self.enforced: tuple[str, ...] = proof.enforced
        proof.close()

    def open(self, context: JSONValue, shared_as: str | None = None) -> Repl:
        """Start a REPL whose `context` is this value: a text, or {paper_id: text}.

        Args:
            context: The value.
            shared_as: A name that always means this same value. REPLs of one name are forked from
                a template that has it loaded.

        Raises:
            SandboxError: no process could be started.
            TypeError: the value is not made of JSON types.
        """
        origin = partial(self._origin, context, shared_as)
        repl = Repl(self._limits, origin, self._slots, self._needed)
        with self._lock:
            if self._closed:
                repl.close()
                raise SandboxError("This sandbox host was closed.")
            self._repls.add(repl)
        return repl

    def close(self) -> None:
        """End every REPL, the templates and the zygote; returns when no process is left."""
        with self._lock:
            self._closed = True
            repls = list(self._repls)
        for repl in repls:
            repl.close()
        self._templates.close()
        self._zygote.close()

    def _origin(self, context: JSONValue, shared_as: str | None) -> tuple[Spawner, bytes]:
        """What to fork a worker from, and its first message: see `inside/worker.py`."""
        zygote = self._living_zygote()
        if shared_as is not None:
            template = self._templates.take(zygote, shared_as, context)
            if template is not None:
                return template, pack(("init", self._options))
        return zygote, pack(("init", self._options, context))

    def _living_zygote(self) -> Zygote:
        """The zygote; a new one when it died. Templates and REPLs of the old one are lost."""
        with self._lock:
            if self._closed:
                raise SandboxError("This sandbox host was closed.")
            if not self._zygote.alive:
                self._templates.close()
                self._zygote.close()
                self._zygote = Zygote(self._bpf, self._preload)
            return self._zygote


def _folders(modules: Sequence[str]) -> dict[str, str]:
    """The folder in which each module or its package lies; empty for one built in.

    Raises:
        SandboxError: one is not installed here.
    """
    folders = {}
    for name in modules:
        package = name.partition(".")[0]
        spec = importlib.util.find_spec(package)
        if spec is None:
            raise SandboxError(
                f"env.sandbox.preload: {name}: there is no module {package!r} in the server's "
                "environment; install it, or correct the name"
            )
        place = [*(spec.submodule_search_locations or ()), spec.origin or ""][0]
        folders[name] = str(Path(place).parent) if os.path.isabs(place) else ""
    return folders


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
