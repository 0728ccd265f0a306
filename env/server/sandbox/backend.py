"""The two backends behind one face: what a tree needs of a REPL, and which backend gives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from env.errors import SandboxError
from env.server.sandbox.host import SandboxHost
from env.server.sandbox.results import CellDone, SubCall
from env.settings import LimitSettings, SandboxSettings

if TYPE_CHECKING:  # openenv takes seconds to import
    from env.models import JSONValue


class OpenRepl(Protocol):
    """One REPL: `Repl`, or `MontyRepl`."""

    def run(self, code: str) -> CellDone | SubCall:
        """Run one cell to its end or to its first sub-call."""
        ...

    def resume(self, value: JSONValue) -> CellDone | SubCall:
        """Give the pending sub-call its value and run on."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Backend(Protocol):
    """What opens REPLs: `SandboxHost`, or `MontyHost`."""

    enforced: tuple[str, ...]
    """What stands between a cell and the machine."""

    def open(self, context: JSONValue, shared_as: str | None = None) -> OpenRepl:
        """A fresh REPL whose variable `context` holds the value; one name, one value."""
        ...

    def close(self) -> None:
        """End every REPL."""
        ...


def start(
    limits: LimitSettings, settings: SandboxSettings, search_window: int, quiet_search: bool
) -> Backend:
    """The backend that the settings name, and never another one.

    Raises:
        SandboxError: it cannot be had here.
    """
    if settings.backend == "monty":
        try:  # an extra, which only this choice needs
            from env.server.sandbox.monty import MontyHost
        except ImportError as error:
            raise SandboxError(
                f"env.sandbox.backend=monty needs pydantic-monty ({error}). "
                "Install it: `pip install pydantic-monty==1.4.0`."
            ) from None
        return MontyHost(limits, settings, search_window, quiet_search)
    return SandboxHost(limits, settings, search_window, quiet_search)
