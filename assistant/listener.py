"""Sockets of the commands that serve a model over HTTP."""

from __future__ import annotations

import os
import socket
from errno import EADDRINUSE

from tasks.errors import StageError

LOCAL = "127.0.0.1"
"""Address that only this machine reaches."""
_LARGEST = 65_535


def listen(host: str, port: int) -> socket.socket:
    """Listening socket; port 0 takes a free one.

    Raises:
        StageError: the address cannot be used.
    """
    if not 0 <= port <= _LARGEST:
        raise StageError(f"--port {port} is not a port. Use one from 0 to {_LARGEST}.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        unknown = isinstance(error, socket.gaierror)
        cause = error.strerror if unknown else os.strerror(error.errno or 0)
        fix = "Choose another port: --port NUMBER, or --port 0 for a free one."
        if error.errno != EADDRINUSE and host != LOCAL:
            fix = "Name an address of this machine, and a port that you may use."
        raise StageError(f"{host}:{port} cannot be used ({cause}). {fix}") from None


def url_of(bound: socket.socket) -> str:
    """Address of a server on a socket, without a path."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
