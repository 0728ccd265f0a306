"""What policy code may import: nothing else can be loaded later, there are no files."""

from __future__ import annotations

import importlib
import sys

_STANDARD = (
    "abc array ast base64 binascii bisect builtins calendar cmath codecs collections "
    "collections.abc colorsys concurrent.futures concurrent.futures.thread contextlib "
    "contextvars copy copyreg csv ctypes dataclasses datetime decimal difflib dis enum errno "
    "fnmatch fractions functools gc graphlib hashlib heapq hmac html html.entities html.parser "
    "importlib inspect io itertools json keyword linecache locale logging marshal math mmap "
    "numbers operator os os.path pathlib pickle pprint queue random re reprlib secrets select "
    "shlex shutil signal socket stat statistics string stringprep struct subprocess symtable "
    "sys tempfile textwrap threading time timeit token tokenize traceback types typing "
    "unicodedata urllib.parse uuid warnings weakref xml.etree.ElementTree zipfile zlib zoneinfo "
    "_strptime encodings.ascii encodings.cp1252 encodings.hex_codec encodings.idna "
    "encodings.latin_1 encodings.rot_13 encodings.unicode_escape encodings.utf_16 "
    "encodings.utf_32 encodings.utf_8_sig "
)


def load(preload: dict[str, str]) -> None:
    """Import the standard library's modules and those the settings name, then forget all paths.

    Args:
        preload: Module -> the folder it is found in. Its public names are loaded as well, since
            some packages (numpy) load theirs at first use.

    Raises:
        SystemExit: A named module cannot be imported; the message says which and why.
    """
    for name in _STANDARD.split():
        importlib.import_module(name)
    sys.path.extend(dict.fromkeys(preload.values()))
    for name in preload:
        try:
            module = importlib.import_module(name)
            for public in getattr(module, "__all__", ()):
                getattr(module, public)
        except Exception as error:
            raise SystemExit(
                f"env.sandbox.preload: {name} cannot be imported: {type(error).__name__}: {error}"
            ) from None
    sys.path.clear()
    sys.path_importer_cache.clear()
