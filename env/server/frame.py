"""One frame of a tree as the server keeps it, and what a child may be handed as its context.

Plain state: `tree.py` decides what happens to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from env.models import FrameKind, FrameStatus, JSONValue, Message, StopReason
from env.server.sandbox import OpenRepl


@dataclass
class Calls:
    """A suspended cell: one slot for each prompt of its call."""

    batched: bool
    """The cell gets a list, else the only value."""
    values: list[JSONValue]
    waiting: dict[int, int]
    """Child frame -> slot, for those that have not ended."""

    @property
    def result(self) -> JSONValue:
        """What the call returns inside the sandbox."""
        return self.values if self.batched else self.values[0]


@dataclass
class Frame:
    """One agent of the tree."""

    number: int
    parent: int | None
    depth: int
    kind: FrameKind
    context: JSONValue
    unsent: list[Message]
    """Messages that the policy has not been sent."""
    status: FrameStatus = "ready"
    stop_reason: StopReason | None = None
    turns: int = 0
    repl: OpenRepl | None = None
    """Opened at the first cell."""
    asked: int = 0
    """Sub-calls that its cells have made, refused ones included."""
    called: bool = False
    """The present cell has made sub-calls."""
    calls: Calls | None = None
    final_code: str | None = None
    """A plain final line of the current turn, still to be run."""
    final_text: str | None = None
    output: list[str] = field(default_factory=list)
    """Observations of this turn's cells so far."""
    failed: bool = False
    """The current turn counts as an error."""
    answer: JSONValue = None


def as_context(value: JSONValue) -> JSONValue:
    """A child's context as text or {key: text}; None when it is neither.

    Search results are accepted as they come: a list of snippets becomes their lines.
    """
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    if isinstance(value, dict):
        parts = {str(key): as_context(item) for key, item in value.items()}
        return parts if all(isinstance(item, str) for item in parts.values()) else None
    return value if isinstance(value, str) else None


def texts_of(context: JSONValue) -> list[str]:
    """The texts of a context that `as_context` gave: a key may hold a paper as well."""
    if isinstance(context, dict):
        return [*context, *context.values()]
    return [] if context is None else [context]
