"""Frames of a hostile worker, and the properties that must hold for any bytes.

- Only `BadFrameError` leaves the decoder and the reading of results.
- A message has JSON types only, and its texts are bounded, however often it refers to one.
- The output of a cell contains no token of a chat template.
- An input costs the host little time.
"""

from __future__ import annotations

import json
import struct
import time
from typing import Any

from benchmarks.fuzz.source import Source
from env import prompts
from env.chat_tokens import TOKEN
from env.server.frame import as_context, texts_of
from env.server.sandbox import results, wire
from env.settings import LimitSettings

_CPU_S = 2.0
"""Limit of one input, in CPU seconds."""
_LIMITS = LimitSettings()
_KINDS = ("done", "call", "final", "ready", "exec", "")
_FNS = (*results._SUB_CALLS, *results._SUB_CALLS, "os.system", "")
_COUNTS = (*[1] * 16, *[0, 2, 2, 9, 9, 9] * 2, 300, 300, 2000, 20_000)


class _Channel:
    """Reading side of a socket: the bytes of the input, in pieces whose size it chooses."""

    def __init__(self, data: bytes, piece: int) -> None:
        self._data = data
        self._piece = piece
        self._place = 0

    def recv(self, most: int) -> bytes:
        start = self._place
        self._place += min(most, self._piece)
        return self._data[start : self._place]


def check_worker(data: bytes) -> None:
    """Play one input; any exception except BadFrameError is a finding."""
    source = Source(data)
    stream = _stream(source)
    piece = source.choose((1 << 18, 1000, 7)) + len(stream) // 1000
    inbox = wire.Inbox(_Channel(stream, piece))  # type: ignore[arg-type]
    started = time.process_time()
    try:
        more = True
        while more:
            more = inbox.fill()
            while (frame := inbox.take()) is not None:
                _check_frame(frame)
    except wire.BadFrameError:
        pass
    used = time.process_time() - started
    assert used < _CPU_S, f"{used:.1f} s for {len(stream)} bytes"


def _check_frame(frame: wire.WireFrame) -> None:
    assert frame.kind in ("ready", "call", "final", "done")
    weight = _weight(frame.value)
    assert weight <= wire.MAX_TEXT, f"{weight} characters"
    # as the environment's answer and a later context carry it
    json.dumps(frame.value, allow_nan=False)
    wire.pack(("return", 1, frame.value))
    if frame.kind == "call":
        call = results.sub_call(frame.value)
        assert call.prompts
        for prompt in call.prompts:
            prompts.defuse(prompt)
        for context in call.contexts or []:
            sum(map(len, texts_of(as_context(context))))
    if frame.kind == "done":
        done, _ = results.cell_done(frame.value, 1200, "cpu", None, 0.0)
        assert len(done.stdout) <= 1200
        for text in (done.stdout, done.traceback):
            assert not TOKEN.search(text), f"a chat token: {text}"
        shown = prompts.cell_message(done.stdout, done.cut, done.new_names, done.traceback, _LIMITS)
        assert len(shown) < 8 * _LIMITS.observation_chars
        assert not TOKEN.search(shown), f"a chat token: {shown}"


def _weight(value: Any) -> int:
    """Characters of all texts, after a check that all types are JSON's."""
    if isinstance(value, dict):
        return sum(map(_weight, value)) + sum(map(_weight, value.values()))
    if isinstance(value, list):
        return sum(map(_weight, value))
    if isinstance(value, str):
        value.encode()  # no lone surrogate
        return len(value)
    assert value is None or type(value) in (bool, int, float), type(value)
    assert type(value) is not int or value.bit_length() < 65, "a number of more than 64 bits"
    return 0


# --- inputs


def _stream(source: Source) -> bytes:
    how = source.byte() % 8
    if how == 0:
        return source.bytes(source.left)
    if how == 1:
        return _sized(source.bytes(source.left))
    if how == 2:
        return _sized(_sized(source.bytes(source.left)))
    frames = [_frame(source) for _ in range(1 + how // 6)]
    return b"".join(frames)


def _sized(data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + data


def _frame(source: Source) -> bytes:
    """A frame of the right shape with wrong texts, references, fields or lengths."""
    blobs = [_blob(source) for _ in range(1 + source.byte() % 5)]
    if source.odd(100):
        blobs.append(b"x" * 2_000_000)
    kind = source.choose(_KINDS) if source.odd(8) else source.choose(_KINDS[:3])
    tree = _tree(source, kind, blobs)
    sizes: list[Any] = [len(blob) for blob in blobs]
    header: Any = {"t": kind, "n": 1, "b": sizes, "v": tree}
    if source.odd(12):
        header[source.choose("tnbv")] = source.value()
    if source.odd(12):
        sizes[source.byte() % len(sizes)] = source.value()
    if source.odd(16):
        del header[source.choose("tnbv")]
    text = source.broken(json.dumps(header)).encode()
    frame = bytearray(_sized(_sized(text) + b"".join(blobs)))
    if source.odd(10):
        frame[source.byte() % min(len(frame), 8)] = source.byte()
    return bytes(frame)


def _blob(source: Source) -> bytes:
    return source.text().encode("utf-8", "surrogatepass")


def _tree(source: Source, kind: str, blobs: list[bytes]) -> Any:
    """The header's form of a value: texts are references, dicts are lists of pairs."""
    if source.odd(8):
        return _any(source, blobs)
    if kind == "done":
        return _fields(
            source,
            blobs,
            stdout=_text(source, blobs),
            cut=source.choose((0, 7, 0, 7, -1, 10**40)),
            error=_text(source, blobs) if source.odd(3) else None,
            traceback=_text(source, blobs),
            new=_many(source, blobs, source.choose(_COUNTS)),
            full=source.odd(2),
        )
    if kind == "call":
        blobs.append(source.choose(_FNS).encode())
        count = source.choose(_COUNTS)
        return _fields(
            source,
            blobs,
            fn={"s": len(blobs) - 1},
            prompts=_many(source, blobs, count),
            contexts=_many(source, blobs, count) if source.odd(2) else None,
        )
    return _any(source, blobs)


def _fields(source: Source, blobs: list[bytes], **values: Any) -> Any:
    """A dict with these fields; sometimes one has another value."""
    pairs = []
    for name, value in values.items():
        blobs.append(name.encode())
        pairs.append([len(blobs) - 1, _any(source, blobs) if source.odd(24) else value])
    return {"d": pairs}


def _text(source: Source, blobs: list[bytes]) -> Any:
    if source.odd(24):
        return {"s": source.value()}
    return {"s": source.byte() % (len(blobs) + source.odd(16))}


def _many(source: Source, blobs: list[bytes], count: int) -> list[Any]:
    """A list of `count` equal items, and sometimes another."""
    first = _any(source, blobs, 3) if source.odd(6) else _text(source, blobs)
    count = min(count, wire.MAX_FRAME // len(json.dumps(first)))  # no more than a frame can hold
    return [*[first] * count, *([_text(source, blobs)] if source.odd(8) else [])]


def _any(source: Source, blobs: list[bytes], depth: int = 0) -> Any:
    kind = source.byte() % 8
    if kind < 3 or depth > 4:
        return _text(source, blobs)
    if kind == 3:
        return [_any(source, blobs, depth + 1) for _ in range(source.byte() % 4)]
    if kind == 4:
        return {
            "d": [
                [source.byte() % len(blobs), _any(source, blobs, depth + 1)]
                for _ in range(source.byte() % 4)
            ]
        }
    if kind == 5:
        count = 1 if depth else source.choose((1, 1, 1, 5, 5, 5, 9, 30_000))
        return [_text(source, blobs)] * count
    return source.value(depth) if kind == 6 else None
