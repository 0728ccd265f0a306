"""Bytes between the S3 server and each of its clients, counted by HAProxy."""

from __future__ import annotations

import csv
import io
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flows.services.processes import free_port
from tasks.errors import ConfigError

_HEAD = """global
    stats socket "unix@{control}" mode 600 level admin
defaults
    mode tcp
    option contstats
    timeout connect 5s
    timeout client 10m
    timeout server 10m
"""
_CLIENT = """listen {name}
    bind 127.0.0.1:{port}
    server s3 {place}
"""


@dataclass
class CountedStore:
    """An address of the S3 server for each client, and the bytes that passed there."""

    control: Path
    urls: dict[str, str]

    def moved(self) -> dict[str, tuple[int, int]]:
        """Bytes that each client has sent and received."""
        table = csv.DictReader(io.StringIO(_ask(self.control, "show stat").removeprefix("# ")))
        return {
            row["pxname"]: (int(row["bin"]), int(row["bout"]))
            for row in table
            if row["svname"] == "FRONTEND"
        }

    def set_server(self, client: str, state: Literal["maint", "ready"]) -> None:
        """Take the store away from a client, or give it back."""
        _ask(self.control, f"set server {client}/s3 state {state}")
        if state == "maint":
            _ask(self.control, f"shutdown sessions server {client}/s3")


@contextmanager
def counted(folder: Path, url: str, clients: Sequence[str]) -> Iterator[CountedStore]:
    """Forward an address for each client to the server at `url`.

    Raises:
        ConfigError: HAProxy is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    control, file = folder / "s3.sock", folder / "s3.cfg"
    ports = {name: free_port() for name in clients}
    place = url.removeprefix("http://")
    parts = [_CLIENT.format(name=name, port=port, place=place) for name, port in ports.items()]
    file.write_text(_HEAD.format(control=control) + "".join(parts))
    places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    program = shutil.which("haproxy", path=places)
    if program is None:
        raise ConfigError("HAProxy is missing. Install it: apt-get install haproxy.")
    command = [program, "-db", "-f", str(file)]
    with (folder / "haproxy.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, start_new_session=True)
    try:
        yield CountedStore(control, {n: f"http://127.0.0.1:{port}" for n, port in ports.items()})
    finally:
        process.kill()
        process.wait()


def _ask(control: Path, command: str) -> str:
    """HAProxy's answer to a command."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(5.0)
        asked.connect(str(control))
        asked.sendall(f"{command}\n".encode())
        return asked.makefile().read()
