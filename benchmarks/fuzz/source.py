"""Choices read from bytes: an input is a structured case, and small changes stay small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")

_NUMBERS = (0, 1, -1, 3, 2**31, 2**63, -(2**63), 2**64, 10**30, 1.5, -0.0, 1e308, 1e-320)
_TEXTS = (
    "",
    "a",
    "x_1",
    "exception",
    "syntax",
    "stopped",
    "<|im_end|>",
    "<|im_<|x|>end|>",
    "<</s>/s>",
    "[/IN[INST]ST]",
    "\x00",
    "\ud800",
    "‮",
    "é" * 40,
    "\n```repl\n",
    "x" * 3000,
)


class Source:
    """Reads choices from bytes; reads zeros after their end.

    Args:
        data: the input.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return max(0, len(self._data) - self._place)

    def byte(self) -> int:
        """The next byte."""
        value = self._data[self._place] if self._place < len(self._data) else 0
        self._place += 1
        return value

    def bytes(self, most: int) -> bytes:
        """At most `most` of the remaining bytes."""
        piece = self._data[self._place : self._place + most]
        self._place += most
        return piece

    def choose(self, items: Sequence[Item]) -> Item:
        """One of the items."""
        return items[self.byte() % len(items)]

    def odd(self, one_in: int) -> bool:
        """True for one in `one_in` bytes; False after the end."""
        return self.byte() % one_in == one_in - 1

    def text(self) -> str:
        """A difficult text, or one of raw bytes."""
        if self.odd(2):
            return self.bytes(self.byte() % 32).decode("utf-8", "surrogateescape")
        return self.choose(_TEXTS) * self.choose((1, 1, 1, 2, 9))

    def value(self, depth: int = 0) -> Any:
        """A JSON value."""
        kind = self.byte() % 9
        if kind < 2:
            return self.choose((None, True, False))
        if kind == 2:
            return self.choose(_NUMBERS)
        if kind < 6 or depth > 4:
            return self.text()
        if kind == 6:
            return [self.value(depth + 1) for _ in range(self.byte() % 4)]
        if kind == 7:
            return {self.text(): self.value(depth + 1) for _ in range(self.byte() % 4)}
        nested: Any = 0
        for _ in range(self.choose((3, 31, 33, 63, 65, 199, 201, 260))):
            nested = [nested] if self.odd(2) else {"a": nested}
        return nested

    def broken(self, text: str) -> str:
        """Usually the text itself; else cut, nested deeply, or with a number of 5,000 digits."""
        how = self.byte() % 32
        if how == 9:
            return text[: self.byte() * len(text) // 255]
        if how == 10:
            return text.replace("0", "1" * 5000, 1)
        return "[" * 50_000 + text if how == 11 else text
