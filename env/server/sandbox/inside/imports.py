"""Modules that policy code may import: without files, no other module can be loaded later."""

from __future__ import annotations

import importlib
import os
import sys
from typing import NoReturn

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


def load(preload: dict[str, str]) -> None:
    """Import modules of the standard library and of the settings, then remove all paths.

    If a module of the settings cannot be imported, write the reason and end the process.

    Args:
        preload: Module -> its folder, empty for a built-in one. Its public names are loaded as
            well, because some packages (numpy) load theirs at first use.
    """
    for name in _STANDARD.split():
        importlib.import_module(name)
    sys.path.extend(dict.fromkeys(filter(None, preload.values())))
    for name in preload:
        try:
            module = importlib.import_module(name)
            for public in getattr(module, "__all__", ()):
                getattr(module, public)
        except Exception as error:
            _refuse(f"{name} cannot be imported: {type(error).__name__}: {error}")
        if len(os.listdir("/proc/self/task")) > 1:
            _refuse(f"{name} starts threads, which a fork of this process would not have")
    sys.path.clear()
    sys.path_importer_cache.clear()


def _refuse(reason: str) -> NoReturn:
    os.write(2, f"env.sandbox.preload: {reason}\n".encode())
    os._exit(1)  # does not wait for threads
