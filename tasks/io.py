"""Outputs of stages: written under a temporary name beside the output, then renamed.

An interrupt leaves either the old output or the new one, never half of one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tasks.errors import StageError


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path for a file or folder; it replaces `path` when the block succeeds.

    If the block raises, `path` is unchanged and the temporary file is removed. The suffix is kept
    because writers such as Matplotlib's choose the format by it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    old = path.with_name(f".{path.stem}.{os.getpid()}.old")
    _remove(temporary)
    try:
        yield temporary
        if temporary.is_dir() and path.exists():
            os.replace(path, old)  # a folder with files can't be replaced
        os.replace(temporary, path)
    finally:
        if old.exists() and not path.exists():
            os.replace(old, path)
        _remove(temporary)
        _remove(old)


def remove_unfinished(*outputs: Path) -> None:
    """Remove what `replacing` of killed processes left of folders that nobody else writes now.

    A kill between its two renames left the old output under another name: it gets its own again.
    """
    for output in outputs:
        for path in output.parent.glob(f".{output.name}.*"):
            if re.fullmatch(r"\d+(\.old)?", path.name[len(output.name) + 2 :]):
                with suppress(OSError):  # another user's, of a container
                    if path.suffix == ".old" and not output.exists():
                        os.replace(path, output)
                    _remove(path)


def finite(value: Any) -> Any:
    """The value with NaN and infinities as None, because JSON cannot express them."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def write_text(path: Path, text: str) -> Path:
    """Write a UTF-8 file completely or not at all; returns its path."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def write_json(path: Path, data: dict[str, Any] | list[Any]) -> Path:
    """Write a report as indented JSON, completely or not at all; returns its path."""
    return write_text(path, json.dumps(finite(data), indent=2, allow_nan=False) + "\n")


def digest(data: Any) -> str:
    """First 16 hex digits of SHA-256 over settings or other plain data, in any order of keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def read_json(path: Path) -> dict[str, Any]:
    """Content of a report; empty if there is none, or only a damaged one."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError):
        return {}


def read_report(path: Path, stage: str) -> dict[str, Any]:
    """Content of a report that a stage needs.

    Raises:
        StageError: it is missing or damaged; the message names the stage that writes it.
    """
    require(path, stage)
    if report := read_json(path):
        return report
    raise StageError(f"{path} is damaged. Run `rlm {stage}` again.")


def require(path: Path, stage: str) -> None:
    """Check that an input exists.

    Raises:
        StageError: the input is missing; the message names the stage that writes it.
    """
    if not path.exists():
        raise StageError(f"{path} is missing. Run `rlm {stage}` first.")
