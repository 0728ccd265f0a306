"""The zygote: a bare interpreter that forks workers, and never runs policy code.

It imports the standard library once, locks itself in, and then obeys three messages on its
control socket: `fork` (with the worker's end of a channel), `reap`, and the end of the socket,
on which it kills what it started. A dead worker stays a zombie until the host asks to reap it, so
a process id cannot come to mean another process while the host may still signal it.
"""

from __future__ import annotations

import gc
import importlib
import marshal
import os
import signal
import socket
import struct
import sys
from typing import NoReturn

from . import confine, paths, traces, worker

# What policy code may import: nothing else can be loaded later, there are no files.
_MODULES = (
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


def main(control_fd: int) -> None:
    """Serve the host until its end of the control socket closes."""
    control = socket.socket(fileno=control_fd)
    config = marshal.loads(control.recv(1 << 20))
    for name in _MODULES.split():
        importlib.import_module(name)
    null = os.open("/dev/null", os.O_RDWR)
    with open("/proc/self/statm") as file:
        config["base_bytes"] = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    sys.path.clear()
    sys.path_importer_cache.clear()
    paths.hide()
    config["layers"] = confine.harden_zygote()
    config["zygote_pid"] = os.getpid()
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    traces.compile_cell("1", "")  # so that no worker pays for the first time
    gc.collect()
    gc.freeze()
    control.send(b"ready")
    _serve(control, config)


def _serve(control: socket.socket, config: dict[str, object]) -> None:
    children: set[int] = set()
    while True:
        try:
            message, fds, _, _ = socket.recv_fds(control, 64, 1)
        except ConnectionError:
            message, fds = b"", []
        if not message:
            break
        if message == b"fork":
            try:
                pid = os.fork()
            except OSError as error:
                pid = -(error.errno or 1)
            if pid == 0:
                _become_worker(fds[0], config)
            os.close(fds[0])
            if pid > 0:
                children.add(pid)
            control.send(struct.pack("!i", pid))
        else:
            (pid,) = struct.unpack("!i", message.removeprefix(b"reap"))
            status = os.waitpid(pid, 0)[1] if pid in children else 0
            children.discard(pid)
            control.send(struct.pack("!i", status))
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)


def _become_worker(channel_fd: int, config: dict[str, object]) -> NoReturn:
    try:
        os.dup2(channel_fd, 3)
        os.closerange(4, 1024)  # this process never has more
        worker.main(config)
    except BaseException:
        os._exit(worker.BROKEN)
    os._exit(0)
