"""The host: one zygote, any number of REPLs, a limit on the cells that run at the same time."""

from __future__ import annotations

import importlib.util
import os
import threading
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from env.errors import SandboxError
from env.server.sandbox.boundary import compile_filter
from env.server.sandbox.repl import Repl
from env.server.sandbox.spawner import Spawner, Zygote
from env.server.sandbox.templates import Templates
from env.server.sandbox.wire import JSONValue, pack
from env.settings import LimitSettings, SandboxSettings

_LIFE_CELLS = 100
"""CPU limit of a worker's whole life, in cells: the kernel ends it even if the host fails to."""


class SandboxHost:
    """Opens REPLs. Thread-safe. The constructor starts one worker to prove that the layers hold.

    Args:
        limits: Limits of every cell.
        settings: Number of cells that run at the same time, number of contexts kept loaded, and
            modules to import besides the standard library.
        search_window: Default `window` of `search`.
        quiet_search: False makes `search` and `extract` print their results.

    Raises:
        SandboxError: seccomp is not available here, or a module to preload cannot be imported.
    """

    _seccomp = True
    """False only in a subclass of the tests, as their negative control."""

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
        """Start a REPL.

        Args:
            context: Value of `context` in the REPL: a text, or {paper_id: text}.
            shared_as: Name that always means this same value. REPLs with the same name are forked
                from a template that has the value loaded.

        Raises:
            SandboxError: no process could be started.
            TypeError: the value contains something other than JSON types.
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
        """End all REPLs, the templates and the zygote; return when no process is left."""
        with self._lock:
            self._closed = True
            repls = list(self._repls)
        for repl in repls:
            repl.close()
        self._templates.close()
        self._zygote.close()

    def _origin(self, context: JSONValue, shared_as: str | None) -> tuple[Spawner, bytes]:
        """The process to fork a worker from, and the first message: see `inside/worker.py`."""
        zygote = self._living_zygote()
        if shared_as is not None:
            template = self._templates.take(zygote, shared_as, context)
            if template is not None:
                return template, pack(("init", self._options))
        return zygote, pack(("init", self._options, context))

    def _living_zygote(self) -> Zygote:
        """The zygote, or a new one if it died: then the old templates and REPLs are lost."""
        with self._lock:
            if self._closed:
                raise SandboxError("This sandbox host was closed.")
            if not self._zygote.alive:
                self._templates.close()
                self._zygote.close()
                self._zygote = Zygote(self._bpf, self._preload)
            return self._zygote


def _folders(modules: Sequence[str]) -> dict[str, str]:
    """The folder that contains each module or its package; empty for a built-in one.

    Raises:
        SandboxError: a module is not installed here.
    """
    folders = {}
    for name in modules:
        package = name.partition(".")[0]
        spec = importlib.util.find_spec(package)
        if spec is None:
            raise SandboxError(
                f"env.sandbox.preload: {name}: the server's environment has no module {package!r}. "
                "Install it, or correct the name."
            )
        place = [*(spec.submodule_search_locations or ()), spec.origin or ""][0]
        folders[name] = str(Path(place).parent) if os.path.isabs(place) else ""
    return folders


class Sandbox:
    """One REPL with its own host: `with Sandbox(limits) as repl: repl.run("1 + 1")`.

    Args:
        limits: Limits of every cell.
        context: Value of `context` in the REPL.
    """

    def __init__(self, limits: LimitSettings | None = None, context: JSONValue = "") -> None:
        self._host = SandboxHost(limits or LimitSettings(), SandboxSettings(running_cells=1))
        self._repl = self._host.open(context)

    def __enter__(self) -> Repl:
        return self._repl

    def __exit__(self, *error: object) -> None:
        self._host.close()
