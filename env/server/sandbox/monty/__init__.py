"""The backend `monty`: cells run in the interpreter pydantic-monty instead of CPython.

For machines without seccomp. Monty runs a part of Python in worker processes of its own that
have no system-call filter: the interpreter is the boundary. What it cannot do: docs/sandbox.md.
The interface is that of `../host.py` and `../repl.py`. Written for pydantic-monty 1.4.0, an extra
of the package: only `../backend.py` imports this, and only when the settings name it.
"""

from env.server.sandbox.monty.host import MontyHost
from env.server.sandbox.monty.repl import MontyRepl

__all__ = ["MontyHost", "MontyRepl"]
