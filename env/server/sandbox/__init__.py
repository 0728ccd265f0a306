"""The REPL sandbox: policy-written Python, one confined process per REPL.

    host = SandboxHost(settings)
    repl = host.open({"p1": "..."})
    result = repl.run("FINAL(search(context, 'Kalvot'))")

The policy's mistakes are values (`CellDone.error`); `SandboxError` means that the machinery
failed. Neighbours: only `env/server` imports this; `inside/` runs in other processes.
"""

from env.server.sandbox.host import Sandbox, SandboxHost
from env.server.sandbox.repl import Repl
from env.server.sandbox.results import UNSET, CellDone, SubCall
from env.server.sandbox.wire import MAX_ANSWER

__all__ = ["MAX_ANSWER", "UNSET", "CellDone", "Repl", "Sandbox", "SandboxHost", "SubCall"]
