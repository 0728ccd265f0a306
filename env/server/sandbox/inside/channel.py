"""The worker's end of the channel: frames on fd 3.

Host to worker: u32 length, marshal (trusted, compact). Worker to host: u32 length, u32 length of
a JSON header, header, UTF-8 blobs. Every text of a value is a blob, and the header only refers to
it. So the host never parses much JSON from here. `env/server/sandbox/wire.py` is the other end with
the same limits.
"""

from __future__ import annotations

import io
import json
import marshal
import os
import struct
from typing import Any

FD = 3
MAX_HEADER = 256 * 1024
MAX_FRAME = 4 * 1024 * 1024
MAX_TEXT = 4 * MAX_FRAME
"""Limit of characters of a value: a text may occur in it many times, but is sent once."""
MAX_DEPTH = 64
ITEM_CHARS = 16
"""Characters that a list, a dict or a number counts: an empty list takes 64 bytes."""


class TooLargeError(ValueError):
    """A value does not fit into a frame; the policy sees the message."""


class Channel:
    """Both directions, blocking. Create it before the filter: opening needs more system calls."""

    def __init__(self) -> None:
        self._source = io.FileIO(FD, closefd=False)

    def receive(self) -> tuple[Any, ...]:
        """Wait for the host's next frame; return an empty tuple if the host is gone."""
        head = bytearray(4)
        if not self._fill(head):
            return ()
        body = bytearray(struct.unpack("!I", head)[0])
        if not self._fill(body):
            return ()
        message: tuple[Any, ...] = marshal.loads(body)
        return message

    def send(self, data: bytes) -> None:
        """Write a whole frame."""
        view = memoryview(data)
        while view:
            view = view[os.write(FD, view) :]

    def _fill(self, buffer: bytearray) -> bool:
        view = memoryview(buffer)
        while view:
            count = self._source.readinto(view)
            if not count:
                return False
            view = view[count:]
        return True


def frame(kind: str, number: int, value: Any, most: int = MAX_TEXT) -> bytes:
    """Encode one message, with at most that many characters.

    Raises:
        TooLargeError: the frame would exceed a limit, or `value` is nested too deeply.
    """
    blobs: dict[str, int] = {}
    tree = _tree(value, blobs, 0, set())
    if _characters(tree, [len(text) for text in blobs]) > most:
        raise TooLargeError(
            f"too large: at most {most:,} characters, with {ITEM_CHARS} for each number or list"
        )
    encoded = [text.encode("utf-8", "replace") for text in blobs]
    header = json.dumps(
        {"t": kind, "n": number, "v": tree, "b": [len(blob) for blob in encoded]},
        separators=(",", ":"),
    ).encode()
    size = 4 + len(header) + sum(len(blob) for blob in encoded)
    if len(header) > MAX_HEADER or size > MAX_FRAME:
        raise TooLargeError("too large: at most 4 MB, in at most some thousand items")
    return b"".join([struct.pack("!II", size, len(header)), header, *encoded])


def _tree(value: Any, blobs: dict[str, int], depth: int, above: set[int]) -> Any:
    """`value` as JSON types with references to texts; other objects become their `str`."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return {"s": _blob(value, blobs)}
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise TooLargeError("a number of more than 64 bits")
        return int(value)
    if isinstance(value, float):
        number = float(value)
        return number if number - number == 0 else None  # NaN and infinity are not JSON
    if depth >= MAX_DEPTH:
        raise TooLargeError(f"nested deeper than {MAX_DEPTH}")
    if id(value) in above:
        raise TooLargeError("a list or dict that contains itself")
    if isinstance(value, dict):
        inside = above | {id(value)}
        return {
            "d": [
                [_blob(str(key), blobs), _tree(item, blobs, depth + 1, inside)]
                for key, item in value.items()
            ]
        }
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=str)
    if isinstance(value, (list, tuple)) or _is_lazy_list(value):
        inside = above | {id(value)}
        return [_tree(item, blobs, depth + 1, inside) for item in value]
    return {"s": _blob(str(value), blobs)}


def _characters(tree: Any, sizes: list[int]) -> int:
    """Characters of a tree: those of its texts with all repeats, and 16 for each other item."""
    if isinstance(tree, list):
        return ITEM_CHARS + sum(_characters(item, sizes) for item in tree)
    if not isinstance(tree, dict):
        return ITEM_CHARS
    if "s" in tree:
        return sizes[tree["s"]]
    return ITEM_CHARS + sum(sizes[key] + _characters(item, sizes) for key, item in tree["d"])


_LAZY = tuple(map(type, ({}.keys(), {}.values(), {}.items(), range(0), map(str, ()), iter([]))))


def _is_lazy_list(value: Any) -> bool:
    return isinstance(value, _LAZY) or type(value).__name__ in ("generator", "deque", "filter")


def _blob(text: str, blobs: dict[str, int]) -> int:
    # A plain copy: a subclass may lie about its hash and equality.
    return blobs.setdefault(str.__str__(text), len(blobs))
