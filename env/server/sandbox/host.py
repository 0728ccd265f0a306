"""The host: one zygote, any number of REPLs, limits on running cells and on all memory."""

from __future__ import annotations

import os
import resource
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from env import ranking
from env.cgroups import machine_bytes, most_processes
from env.errors import SandboxError
from env.server.sandbox.boundary import compile_filter
from env.server.sandbox.clock import has_schedstat
from env.server.sandbox.memory import Ledger
from env.server.sandbox.repl import Repl, Shared
from env.server.sandbox.slots import Slots
from env.server.sandbox.spawner import Spawner, Zygote
from env.server.sandbox.templates import Templates
from env.server.sandbox.wire import MAX_ANSWER, JSONValue, pack
from env.settings import TEMPLATES, EnvSettings, LimitSettings

_LIFE_CELLS = 100
"""CPU limit of a worker's whole life, in cells: the kernel ends it even if the host fails to."""

TYPICAL_FRAMES = 9
"""Living frames of a typical large episode: a root and eight children."""

SERVER_DESCRIPTORS = 8
"""Descriptors of the server itself, as measured."""

SERVER_THREADS = 64
"""Threads and processes of the server besides those of its sessions."""

_REPL_SHARE = 0.5
"""Share of the memory that REPLs may hold; the server, and cells that grow, need the rest."""


class SandboxHost:
    """Opens REPLs. Thread-safe. The constructor starts one worker to prove that the layers hold.

    Args:
        settings: Limits of every cell, cells that run at the same time, and memory of all. With
            `rank: minilm`, `rank` asks for its order, by a `SubCall`, instead of computing it.
        span_chars: Characters of a passage at least.
        relieve: Called when no descriptor is free; it may close some that nobody needs.

    Raises:
        SandboxError: seccomp is not available here.
    """

    _seccomp = True
    """False only in a subclass of the tests, as their negative control."""

    def __init__(
        self,
        settings: EnvSettings,
        span_chars: int = ranking.LEAST_CHARS,
        relieve: Callable[[], None] = lambda: None,
    ) -> None:
        self._limits = limits = settings.limits
        self._options: dict[str, Any] = {
            "memory_bytes": limits.memory_mb << 20,
            "life_cpu_s": int(limits.cell_cpu_s * _LIFE_CELLS) + 10,
            "stdout_chars": limits.observation_chars,
            "search_window": settings.search_window,
            "passage_chars": settings.passage_chars,
            "span_chars": span_chars,
            "ordered": settings.rank == "minilm",
        }
        self._bpf = compile_filter() if self._seccomp else None
        total = machine_bytes() if settings.memory_mb is None else settings.memory_mb << 20
        most = most_workers(hard_descriptors(), most_processes())
        self._shared = Shared(
            # More cells than processors would only wait for each other.
            Slots(min(settings.sandbox.running_cells, len(os.sched_getaffinity(0)))),
            Ledger(int(total * _REPL_SHARE), most),
            ("no_new_privs", "rlimits", *(("seccomp",) if self._seccomp else ())),
        )
        self._lock = threading.Lock()
        self._closed = False
        self._repls: weakref.WeakSet[Repl] = weakref.WeakSet()
        self._templates = Templates(TEMPLATES, settings.sandbox.templates_mb << 20)
        self._relieve = relieve
        self._zygote = Zygote(self._bpf, relieve)
        try:
            proof = self.open("")
        except SandboxError:
            self.close()
            raise
        self.enforced: tuple[str, ...] = proof.enforced
        proof.run("import json, re\nlines = [str(n) for n in range(1000)]")
        self.typical_mb = TYPICAL_FRAMES * self._shared.ledger.total / (1 << 20)
        """Memory of an episode with `TYPICAL_FRAMES` living frames, as measured here."""
        self.budget_mb = self._shared.ledger.budget / (1 << 20)
        """Memory that all REPLs may hold together."""
        self.measures_waiting = has_schedstat()
        """Whether this kernel says how long a cell waited for a processor."""
        proof.close()

    def open(
        self,
        context: JSONValue,
        shared_as: str | None = None,
        question: str = "",
        session: object = None,
        answer_chars: int = MAX_ANSWER,
    ) -> Repl:
        """Start a REPL.

        Args:
            context: Value of `context` in the REPL: a text, or {paper_id: text}.
            shared_as: Name that always means this same value. REPLs with the same name are forked
                from a template that has the value loaded.
            question: Value of `question` in the REPL.
            session: Whose turn and whose share of the memory it uses; None for its own.
            answer_chars: Characters of an answer, at most `MAX_ANSWER`.

        Raises:
            SandboxError: no process could be started.
            TypeError: the value contains something other than JSON types.
        """
        most = min(answer_chars, MAX_ANSWER)
        options = {**self._options, "question": question, "answer_chars": most}
        origin = partial(self._origin, context, shared_as, options)
        repl = Repl(self._limits, origin, self._shared, session, most)
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

    def _origin(
        self, context: JSONValue, shared_as: str | None, options: dict[str, Any]
    ) -> tuple[Spawner, bytes]:
        """The process to fork a worker from, and the first message: see `inside/worker.py`."""
        zygote = self._living_zygote()
        if shared_as is not None:
            template = self._templates.take(zygote, shared_as, context)
            if template is not None:
                return template, pack(("init", options))
        return zygote, pack(("init", options, context))

    def _living_zygote(self) -> Zygote:
        """The zygote, or a new one if it died: then the old templates and REPLs are lost."""
        with self._lock:
            if self._closed:
                raise SandboxError("This sandbox host was closed.")
            if not self._zygote.alive:
                self._templates.close()
                self._zygote.close()
                self._zygote = Zygote(self._bpf, self._relieve)
            return self._zygote


def hard_descriptors() -> int | None:
    """Open files that this process may have if it raises its soft limit; None without a limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def most_workers(descriptors: int | None, processes: int | None = None) -> int | None:
    """Workers that may live at a time, or None without a limit.

    Each worker and template holds a descriptor and is a process. Each session holds a connection
    and a thread.

    Args:
        descriptors: as of `hard_descriptors`.
        processes: limit of processes and threads; None without one.
    """
    limits = ((descriptors, SERVER_DESCRIPTORS), (processes, SERVER_THREADS))
    free = [limit - own - TEMPLATES for limit, own in limits if limit is not None]
    return TYPICAL_FRAMES * max(1, min(free) // (TYPICAL_FRAMES + 1)) if free else None


class Sandbox:
    """One REPL with its own host: `with Sandbox(limits) as repl: repl.run("1 + 1")`.

    Args:
        limits: Limits of every cell.
        context: Value of `context` in the REPL.
    """

    def __init__(self, limits: LimitSettings | None = None, context: JSONValue = "") -> None:
        self._host = SandboxHost(EnvSettings(limits=limits or LimitSettings()))
        self._repl = self._host.open(context)

    def __enter__(self) -> Repl:
        return self._repl

    def __exit__(self, *error: object) -> None:
        self._host.close()
