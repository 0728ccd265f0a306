"""Rows of a JSONL file as plain values; a broken row does not affect the others.

A file that cannot be read at all is a `SourceError`; a line that cannot be read is a `Rejected`.
`files.py` makes problems of the rows.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from env.errors import SourceError
from tasks.data.row_schema import WHOLE_ROW
from tasks.data.source import MAX_MB, Rejected, RowFault

_UTF16_32 = (
    codecs.BOM_UTF32_LE,
    codecs.BOM_UTF32_BE,
    codecs.BOM_UTF16_LE,
    codecs.BOM_UTF16_BE,
)

TableLine = tuple[str, Any]
"""Name of a row, and its plain values or its `Rejected`."""


def read_rows(path: Path) -> Iterator[TableLine]:
    """Rows of a file in order; blank lines are skipped.

    Args:
        path: a .jsonl file; a line of more than `MAX_MB` megabytes is rejected.

    Raises:
        SourceError: the file is missing, empty, unreadable, or not JSONL.
    """
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise SourceError(f"{path}: {what}. Set prepare.files.path to a JSONL file.")
    if path.suffix.lower() != ".jsonl":
        raise SourceError(f"{path}: is not .jsonl. See {_HOW}.")
    try:
        has_rows = False
        for line in _jsonl(path):
            has_rows = True
            yield line
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not has_rows:
        raise SourceError(f"{path}: contains no row. Write one problem per line, see {_HOW}.")


_HOW = "docs/own_data.md"


def _jsonl(path: Path) -> Iterator[TableLine]:
    limit = MAX_MB * 1_000_000
    with path.open("rb") as file:
        start = file.read(4)
        if start.startswith(_UTF16_32) or b"\0" in start:
            raise SourceError(f"{path}: is not UTF-8 text, perhaps UTF-16. Save it as UTF-8.")
        file.seek(len(codecs.BOM_UTF8) if start.startswith(codecs.BOM_UTF8) else 0)
        number = 0
        unread: list[
            TableLine
        ] = []  # held back until one line is JSON: a file without any is not JSONL
        any_json = False
        while raw := file.readline(limit + 1):
            number += 1
            row = f"{path.name}:{number}"
            if len(raw) > limit:
                reason = f"the line is longer than {MAX_MB} MB"
                item: Any = Rejected(row, WHOLE_ROW, reason, "split it: one problem per line")
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
        f"{path}: none of its {lines} lines is a JSON value ({first.row}: {first.reason}). "
        f"Write one object per line in UTF-8, without indentation, see {_HOW}."
    )


def _decode(row: str, raw: bytes) -> Any:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} of the line is not valid UTF-8"
        return Rejected(row, WHOLE_ROW, reason, "save the file as UTF-8")
    if text.startswith("\ufeff"):
        reason = "starts with a byte order mark"
        return Rejected(row, WHOLE_ROW, reason, "delete it; perhaps two files were joined")
    try:
        return parse_json(text)
    except RowFault as error:
        return error.at(row, WHOLE_ROW)


def parse_json(text: str) -> Any:
    """Plain values of strict JSON.

    Raises:
        RowFault: the text is not JSON, contains NaN, an infinity or a key twice, or is nested
            too deeply.
    """
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        raise RowFault(
            f"is not JSON: {error.msg.removesuffix(' at')} at character {error.pos}",
            "complete the line, it is cut off" if cut else "correct it there: one object per line",
        ) from None
    except RecursionError:
        raise RowFault("is nested too deeply", "use at most four levels") from None
    except RowFault:
        raise
    except ValueError as error:  # such as an integer of 10,000 digits
        raise RowFault(f"is not readable JSON: {error}", "correct the number") from None


def _no_constant(name: str) -> NoReturn:
    raise RowFault(f"contains {name}, which is not JSON", "delete it; only offsets are numbers")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RowFault(f"contains the key {twice!r} twice", "delete one of them")
    return members
