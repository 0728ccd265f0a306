"""Removal of the host's paths from texts of the standard library that a cell can print.

For equal messages, not for secrecy: tracebacks and `repr` name modules, wherever Python is
installed.
"""

from __future__ import annotations

import _imp
import gc
import logging
from types import FunctionType, ModuleType


def hide() -> None:
    """Rewrite all functions and modules that are imported so far."""
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename.startswith("/"):
            name = f"<{thing.__module__}>"
            _imp._fix_co_filename(thing.__code__, name)  # type: ignore[attr-defined]
        elif isinstance(thing, ModuleType):
            thing.__dict__.pop("__file__", None)
            if thing.__spec__ is not None and thing.__spec__.has_location:
                thing.__spec__.has_location = False
                thing.__spec__.origin = "built-in"
    # logging compares file names with this one to leave out its own frames.
    setattr(logging, "_srcfile", logging.addLevelName.__code__.co_filename)  # noqa: B010
