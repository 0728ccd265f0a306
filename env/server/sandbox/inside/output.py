"""Output of a cell: the first characters are kept, the rest is counted."""

from __future__ import annotations

import io


class Output(io.TextIOBase):
    """A text stream that keeps at most `limit` characters."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.clear()

    def clear(self) -> None:
        """Discard everything."""
        self._parts: list[str] = []
        self._kept = 0
        self.cut = 0

    def write(self, text: str) -> int:
        """Keep the text up to the limit and count the rest."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        size = len(text)
        room = self._limit - self._kept
        if size <= room:
            self._parts.append(text)
            self._kept += size
        else:
            self._parts.append(text[:room])
            self._kept = self._limit
            self.cut += size - room
        if len(self._parts) > 1000:  # endless empty or tiny prints
            self._parts = ["".join(self._parts)]
        return size

    def text(self) -> str:
        """The text that was kept."""
        return "".join(self._parts)

    def writable(self) -> bool:
        """True."""
        return True
