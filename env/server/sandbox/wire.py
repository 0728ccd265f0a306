"""The host's end of a worker's channel: bytes in, checked messages out.

The worker is hostile. Sizes are bounded before anything is read, the JSON header is small, and
texts are counted UTF-8. Anything of another shape is a `BadFrameError`, and the worker is killed.
`inside/channel.py` is the other end.
"""

from __future__ import annotations

import json
import marshal
import socket
import struct
from dataclasses import dataclass
from typing import Any, Literal

from env.server.sandbox.inside.channel import ITEM_CHARS, MAX_FRAME, MAX_HEADER, MAX_TEXT

JSONValue = Any
"""None, bool, int, float, str, or lists and string-keyed dicts of these."""
MAX_ANSWER = 1_000_000
"""Limit of characters of an answer, which parents and clients receive with all its repeats."""
MAX_DEPTH = 200
"""More than `inside/channel.py` sends, less than recursion allows (three calls per level)."""

WireKind = Literal["ready", "call", "final", "done"]


class BadFrameError(Exception):
    """The worker sent bytes that no honest worker sends."""


@dataclass(frozen=True)
class WireFrame:
    """One message of a worker: its kind, the cell's number, its value."""

    kind: WireKind
    number: int
    value: JSONValue


class Inbox:
    """Collects bytes of one worker until they are a frame."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._buffer = bytearray()

    def fill(self) -> bool:
        """Read the available bytes; return False at the end of the stream."""
        try:
            data = self._channel.recv(1 << 18)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        self._buffer += data
        return bool(data)

    def take(self) -> WireFrame | None:
        """The next whole frame, or None if it needs more bytes.

        Raises:
            BadFrameError: the bytes are not a frame.
        """
        if len(self._buffer) < 4:
            return None
        (size,) = struct.unpack_from("!I", self._buffer)
        if not 4 <= size <= MAX_FRAME:
            raise BadFrameError(f"a frame of {size} bytes")
        if len(self._buffer) < 4 + size:
            return None
        body = bytes(self._buffer[4 : 4 + size])
        del self._buffer[: 4 + size]
        return parse(body)


def parse(body: bytes) -> WireFrame:
    """Parse the bytes of a frame after its length.

    Raises:
        BadFrameError: the bytes are not a frame.
    """
    (header_size,) = struct.unpack_from("!I", body)
    if header_size > MAX_HEADER or header_size + 4 > len(body):
        raise BadFrameError(f"a header of {header_size} bytes")
    try:
        header = json.loads(body[4 : 4 + header_size], parse_constant=_no_constant)
        kind, number, sizes = header["t"], header["n"], header["b"]
        if kind not in ("ready", "call", "final", "done") or type(number) is not int:
            raise BadFrameError("an unknown kind of message")
        value = _value(header["v"], _texts(body, 4 + header_size, sizes), 0)
        if characters(value) > (MAX_ANSWER if kind == "final" else MAX_TEXT):
            raise BadFrameError("a value that is too large once its texts are in place")
        return WireFrame(kind, number, value)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise BadFrameError(type(error).__name__) from None


def _texts(body: bytes, start: int, sizes: Any) -> list[str]:
    if type(sizes) is not list or not all(type(size) is int and size >= 0 for size in sizes):
        raise BadFrameError("bad lengths")
    if start + sum(sizes) != len(body):
        raise BadFrameError("lengths that do not add up")
    texts = []
    for size in sizes:
        texts.append(body[start : start + size].decode("utf-8", "replace"))
        start += size
    return texts


def _value(tree: Any, texts: list[str], depth: int) -> JSONValue:
    if depth > MAX_DEPTH:
        raise BadFrameError("nested too deeply")
    if type(tree) is list:
        return [_value(item, texts, depth + 1) for item in tree]
    if type(tree) is dict:
        if "s" in tree:
            return _text(tree["s"], texts)
        return {_text(key, texts): _value(item, texts, depth + 1) for key, item in tree["d"]}
    if tree is None or type(tree) is bool:
        return tree
    if type(tree) is int and -(2**63) <= tree < 2**63:
        return tree
    if type(tree) is float and tree - tree == 0:
        return tree
    raise BadFrameError("an unknown type")


def characters(value: JSONValue) -> int:
    """Characters of a value: those of its texts with all repeats, and 16 for each other item."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return ITEM_CHARS + sum(map(characters, value))
    if isinstance(value, dict):
        return ITEM_CHARS + sum(map(len, value)) + sum(map(characters, value.values()))
    return ITEM_CHARS


def _text(index: Any, texts: list[str]) -> str:
    if type(index) is not int or index < 0:
        raise BadFrameError("a bad reference")
    return texts[index]


def _no_constant(name: str) -> None:
    raise BadFrameError(name)


def pack(message: tuple[Any, ...]) -> bytes:
    """A frame for the worker; raises as `dump`."""
    body = dump(message)
    return struct.pack("!I", len(body)) + body


def dump(value: Any) -> bytes:
    """A value of JSON types (and tuples) for the other side; lone surrogates are replaced.

    Raises:
        TypeError: it contains something other than JSON types.
    """
    try:
        return marshal.dumps(clean(value))
    except ValueError as error:
        raise TypeError(f"only JSON types can enter a sandbox: {error}") from None


def clean(value: Any) -> Any:
    """A copy of plain strings, lists, tuples and dicts; lone surrogates are replaced."""
    if isinstance(value, str):
        plain = str.__str__(value)
        try:
            plain.encode()
        except UnicodeEncodeError:
            return plain.encode("utf-8", "replace").decode()
        return plain  # the same object: marshal sends a repeated text once
    if isinstance(value, dict):
        return {clean(str(key)): clean(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(clean(item) for item in value)
    return [clean(item) for item in value] if isinstance(value, list) else value
