"""The standard library as cells see it: what they may import, executors and texts without paths.

Without files, no module can be loaded later. A worker can start no thread or process, so executors
run each task at once, in the caller. Texts that a cell can print lose the host's paths, for equal
messages and not for secrecy: tracebacks and `repr` name modules, wherever Python is installed.
"""

from __future__ import annotations

import _imp
import concurrent.futures
import concurrent.futures.thread
import gc
import importlib
import logging
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

_STANDARD = (
    "abc argparse array ast base64 binascii bisect builtins calendar cmath codecs collections "
    "collections.abc colorsys concurrent.futures concurrent.futures.thread configparser contextlib "
    "contextvars copy copyreg csv ctypes dataclasses datetime decimal difflib dis enum errno "
    "fnmatch fractions functools gc graphlib gzip hashlib heapq hmac html html.entities "
    "html.parser importlib inspect io ipaddress itertools json keyword linecache locale logging "
    "marshal math mmap numbers operator os os.path pathlib pickle pprint queue random re "
    "reprlib secrets select shlex shutil signal socket stat statistics string stringprep struct "
    "subprocess symtable sys tempfile textwrap threading time timeit token tokenize tomllib "
    "traceback types typing unicodedata urllib.parse uuid warnings weakref xml.etree.ElementTree "
    "zipfile zlib zoneinfo "
    "_strptime encodings.ascii encodings.cp1252 encodings.hex_codec encodings.idna "
    "encodings.latin_1 encodings.punycode encodings.rot_13 encodings.unicode_escape "
    "encodings.utf_16 encodings.utf_32 encodings.utf_8_sig "
)


def load() -> None:
    """Import modules of the standard library, then remove all paths."""
    for name in _STANDARD.split():
        importlib.import_module(name)
    sys.path.clear()
    sys.path_importer_cache.clear()


def hide_paths() -> None:
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


class InlineExecutor(concurrent.futures.Executor):
    """A replacement of `ThreadPoolExecutor` whose only worker is the caller."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._max_workers = 1

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run `fn` now; an Exception goes into the future, FINAL and limits propagate."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def replace_pools() -> None:
    """Replace the pools that policy code can import."""
    for name in ("ThreadPoolExecutor", "ProcessPoolExecutor"):
        setattr(concurrent.futures, name, InlineExecutor)
    setattr(concurrent.futures.thread, "ThreadPoolExecutor", InlineExecutor)  # noqa: B010
