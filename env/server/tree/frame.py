"""One frame of a tree as the server keeps it, and the contexts that a child may be given.

Plain state: `tree.py` decides how it changes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from env.models import FrameKind, FrameStatus, JSONValue, Message, StopReason
from env.server.sandbox import Repl

_ITEM_BYTES = 128
"""Bytes that an empty list, a number or a dictionary's entry takes, at most."""


@dataclass
class PendingCalls:
    """Sub-calls of a suspended cell: one slot for each prompt of its call."""

    batched: bool
    """Whether the call returns a list; otherwise it returns the only value."""
    values: list[JSONValue]
    waiting: dict[int, int]
    """Child frame -> slot, for children that have not ended."""

    @property
    def result(self) -> JSONValue:
        """Value that the call returns inside the sandbox."""
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
    """Messages that were not yet sent to the policy."""
    prompt: str = ""
    """The root's question, or the words of a child's parent."""
    status: FrameStatus = "ready"
    stop_reason: StopReason | None = None
    turns: int = 0
    repl: Repl | None = None
    """Opened at the first cell."""
    calls: PendingCalls | None = None
    final_code: str | None = None
    """A plain final line of the current turn that has not run yet."""
    final_text: str | None = None
    output: list[str] = field(default_factory=list)
    """Observations of this turn's cells so far."""
    failed: bool = False
    """Whether the current turn counts as an error."""
    seen_to_fail: bool = False
    """Whether the server itself saw the current turn fail."""
    answer: JSONValue = None

    @property
    def given(self) -> dict[str, str]:
        """Texts of its context, under any keys; without a context, its prompt."""
        if isinstance(self.context, dict):
            return self.context
        return {"context": self.prompt if self.context is None else self.context}

    @property
    def place(self) -> dict[str, Any]:
        """Fields that `FrameView` and `FrameState` share."""
        return {
            "frame": self.number,
            "parent": self.parent,
            "depth": self.depth,
            "kind": self.kind,
            "status": self.status,
            "stop_reason": self.stop_reason,
        }


def as_context(value: JSONValue) -> JSONValue:
    """A child's context as text or {key: text}; None if it is neither.

    Search results are valid contexts: a list of snippets becomes a text with one line each.
    """
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    if isinstance(value, dict):
        parts = {str(key): as_context(item) for key, item in value.items()}
        return parts if all(isinstance(item, str) for item in parts.values()) else None
    return value if isinstance(value, str) else None


def context_chars(value: JSONValue) -> int:
    """Characters of `as_context(value)`, without making it; of another value, those of its texts.

    A list may name one text many times, so the context may be far larger than the value.
    """
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(map(context_chars, value)) + max(0, len(value) - 1)
    if isinstance(value, dict):
        return sum(map(len, value)) + sum(map(context_chars, value.values()))
    return 0


def held_bytes(value: JSONValue) -> int:
    """Bytes of memory that a value holds, at most: those of its texts, and 128 for each item."""
    if isinstance(value, str):
        return sys.getsizeof(value)
    if isinstance(value, list):
        return _ITEM_BYTES + sum(map(held_bytes, value))
    if isinstance(value, dict):
        return _ITEM_BYTES * (1 + len(value)) + sum(
            held_bytes(item) for pair in value.items() for item in pair
        )
    return _ITEM_BYTES


def texts_of(context: JSONValue) -> list[str]:
    """Texts in a result of `as_context`; keys are included, because they may contain papers."""
    if isinstance(context, dict):
        return [*context, *context.values()]
    return [] if context is None else [context]
