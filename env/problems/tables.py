"""Rows of a JSONL or Parquet file as plain values, each on its own: a broken one costs no other.

Neighbour: `files.py` makes problems of them. A file that cannot be read at all is a
`SourceError`; a line that cannot be read is a `Rejected`.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from env.errors import SourceError
from env.problems.row_schema import WHOLE_ROW
from env.problems.source import Rejected

_NESTED = ("papers", "documents", "evidence")
"""Columns that a Parquet file may hold as JSON text."""
_BATCH = 64
"""Parquet rows in memory at a time."""
_UTF16_32 = (
    codecs.BOM_UTF32_LE,
    codecs.BOM_UTF32_BE,
    codecs.BOM_UTF16_LE,
    codecs.BOM_UTF16_BE,
)

Line = tuple[str, Any]
"""A row's name, and its plain values or the `Rejected` that stands for it."""


class _Unreadable(ValueError):
    """What is wrong with one line of JSON, and how to mend it."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy


def read(path: Path, max_mb: int) -> Iterator[Line]:
    """The rows of a file, in its order; blank lines are passed over.

    Args:
        path: ending in .jsonl or .parquet.
        max_mb: a longer line is rejected.

    Raises:
        SourceError: the file is missing, of another kind, empty, or nothing of it can be read.
    """
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise SourceError(f"{path}: {what}; name a JSONL or Parquet file (prepare.files.path)")
    suffix = path.suffix.lower()
    if suffix not in (".jsonl", ".parquet"):
        raise SourceError(f"{path}: its name ends neither in .jsonl nor in .parquet; see {_HOW}")
    try:
        found = False
        for line in _parquet(path) if suffix == ".parquet" else _jsonl(path, max_mb):
            found = True
            yield line
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not found:
        raise SourceError(f"{path}: holds no row; write one problem a line, see {_HOW}")


_HOW = "docs/own_data.md"


def _jsonl(path: Path, max_mb: int) -> Iterator[Line]:
    limit = max_mb * 1_000_000
    with path.open("rb") as file:
        start = file.read(4)
        if start.startswith(_UTF16_32) or b"\0" in start:
            raise SourceError(f"{path}: is no UTF-8 text (UTF-16?); save it as UTF-8")
        file.seek(len(codecs.BOM_UTF8) if start.startswith(codecs.BOM_UTF8) else 0)
        number = 0
        unread: list[Line] = []  # kept back until one line is JSON, else the file is none
        any_json = False
        while raw := file.readline(limit + 1):
            number += 1
            row = f"{path.name}:{number}"
            if len(raw) > limit:
                reason = f"the line is longer than {max_mb} MB"
                item: Any = Rejected(row, WHOLE_ROW, reason, "split it: one problem a line")
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(limit)
            elif not raw.strip():
                continue
            else:
                item = _decode(row, raw)
            any_json = any_json or not isinstance(item, Rejected)
            unread.append((row, item))
            if any_json:
                yield from unread
                unread.clear()
    if unread:
        _no_jsonl(path, unread[0][1], len(unread))


def _no_jsonl(path: Path, first: Rejected, lines: int) -> NoReturn:
    raise SourceError(
        f"{path}: none of its {lines} lines is a JSON value, the first one ({first.row}): "
        f"{first.reason}; write one object a line, no indented JSON, in UTF-8, see {_HOW}"
    )


def _decode(row: str, raw: bytes) -> Any:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} of the line is no UTF-8"
        return Rejected(row, WHOLE_ROW, reason, "save the file as UTF-8")
    if "\ufeff" in text[:1]:
        reason = "a byte order mark stands before it"
        return Rejected(row, WHOLE_ROW, reason, "delete it; were two files joined?")
    try:
        return parse_json(text)
    except _Unreadable as error:
        return Rejected(row, WHOLE_ROW, str(error), error.remedy)


def parse_json(text: str) -> Any:
    """Plain values of strict JSON.

    Raises:
        ValueError: no JSON, NaN or an infinity, a key twice, or nested too deep; it has a
            `remedy`.
    """
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        raise _Unreadable(
            f"is no JSON: {error.msg} at character {error.pos}",
            "the line is cut off: write it whole" if cut else "mend it there: one object a line",
        ) from None
    except RecursionError:
        raise _Unreadable("is nested too deep", "a problem needs four levels") from None
    except _Unreadable:
        raise
    except ValueError as error:  # such as an integer of 10,000 digits
        raise _Unreadable(f"is no JSON that can be read: {error}", "mend the number") from None


def _no_constant(name: str) -> NoReturn:
    raise _Unreadable(
        f"holds {name}, which is no JSON", "delete it; no number is needed but offsets"
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Unreadable(f"holds the key {twice!r} twice", "delete one of them")
    return found


def _parquet(path: Path) -> Iterator[Line]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = [name for name in file.schema_arrow.names if not name.startswith("__index_")]
            if "question" not in names:
                raise SourceError(f"{path}: has no column 'question', only {names}; see {_HOW}")
            number = 0
            for batch in file.iter_batches(batch_size=_BATCH, columns=names):
                for values in batch.to_pylist():
                    number += 1
                    row = f"{path.name}:{number}"
                    yield row, _unpack(row, values)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        first = str(error).splitlines()[0]
        raise SourceError(f"{path}: cannot be read as Parquet ({first}); write it anew") from None


def _unpack(row: str, values: dict[str, Any]) -> Any:
    """A row as JSONL would hold it: nothing for null, JSON text as what it says."""
    data = _without_nulls(values)
    for name in _NESTED:
        if isinstance(data.get(name), str):
            try:
                data[name] = parse_json(data[name])
            except _Unreadable as error:
                return Rejected(row, name, str(error), error.remedy)
    return data


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
