"""Modules that policy code may import: without files, no other module can be loaded later."""

from __future__ import annotations

import importlib
import sys

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
