"""The REPL sandbox: policy-written Python, one confined process per REPL.

    host = SandboxHost(limits, settings)
    repl = host.open({"p1": "..."})
    result = repl.run("FINAL(search(context, 'Kalvot'))")

The policy's mistakes come back as values (`CellDone.error`); `SandboxError` means that the
machinery failed. `start` gives the backend that the settings name: this one, or `monty/` for
machines without seccomp. Neighbours: only `env/server` imports this; `inside/` runs in other
processes.
"""

from env.server.sandbox.backend import Backend, OpenRepl, start
from env.server.sandbox.host import Sandbox, SandboxHost
from env.server.sandbox.repl import Repl
from env.server.sandbox.results import UNSET, CellDone, SubCall, Unset

__all__ = [
    "UNSET",
    "Backend",
    "CellDone",
    "OpenRepl",
    "Repl",
    "Sandbox",
    "SandboxHost",
    "SubCall",
    "Unset",
    "start",
]
