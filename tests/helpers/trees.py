"""A tree that a test plays by hand, on real REPLs or on scripted ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from env.models import FrameTurn, FrameView
from env.server.sandbox import CellDone, SandboxHost, SubCall
from env.server.tree import Tree
from env.settings import EnvSettings, LimitSettings


class ScriptedRepls:
    """A host whose REPLs answer code by a script; they note the tokens that are left to each."""

    def __init__(self, *events: CellDone | SubCall, script: Callable[[str], Any] | None = None):
        left = iter(events)
        self.script = script or (lambda code: next(left))
        self.seen: list[int | None] = []
        self.values: list[Any] = []
        self.tokens_left: int | None = None
        self.closed = 0

    def open(self, *_: Any, **__: Any) -> ScriptedRepls:
        return self

    def run(self, code: str) -> Any:
        self.seen.append(self.tokens_left)
        return self.script(code.strip())

    def resume(self, value: Any) -> Any:
        self.values.append(value)
        return self.run("resumed")

    def close(self) -> None:
        self.closed += 1


class Play:
    """A tree and the last view of each of its frames.

    Args:
        host: opens the REPLs.
        papers: of the problem.
        limits: settings of the tree.
    """

    def __init__(
        self, host: SandboxHost | ScriptedRepls, papers: Mapping[str, str], **limits: Any
    ) -> None:
        settings = EnvSettings(limits=LimitSettings(**limits))
        self.repls: Any = host
        self.tree = Tree(settings, self.repls, "Which?", papers)
        self.views: dict[int, FrameView] = {}
        self.look()

    def look(self) -> None:
        self.views |= {view.frame: view for view in self.tree.views()}

    def turn(self, *turns: tuple[int, str], **more: Any) -> None:
        self.tree.play([FrameTurn(frame=n, text=text, **more) for n, text in turns])
        self.look()

    def code(self, *cells: tuple[int, str], **more: Any) -> None:
        self.turn(*((n, f"```repl\n{code}\n```") for n, code in cells), **more)

    def said(self, frame: int) -> str:
        return self.views[frame].messages[-1].content

    def ready(self) -> list[int]:
        return [state.frame for state in self.tree.states() if state.status == "ready"]

    def statuses(self) -> Sequence[str]:
        return [state.status for state in self.tree.states()]

    def stops(self) -> list[str | None]:
        return [state.stop_reason for state in self.tree.states()]
