"""How a stage writes: under a temporary name beside its output, then renamed.

An interrupt leaves the old output or the new one, never half of one.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write a file or folder at; it replaces `path` when the block succeeds.

    A block that raises leaves `path` as it was and removes what was written. The suffix is kept,
    since writers such as Matplotlib's choose the format by it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    _remove(temporary)
    try:
        yield temporary
        if temporary.is_dir():
            _remove(path)  # a folder is not replaced by a rename while it holds files
        os.replace(temporary, path)
    finally:
        _remove(temporary)


def finite(value: Any) -> Any:
    """The value with NaN and infinities as None: JSON has no names for them."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def write_json(path: Path, data: dict[str, Any] | list[str]) -> Path:
    """Write a report, indented, whole or not at all."""
    with replacing(path) as temporary:
        text = json.dumps(finite(data), indent=2, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")
    return path
