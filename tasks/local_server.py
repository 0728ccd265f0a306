"""The deployment target `local`: a server process on this machine.

Neighbours: `deploy.py` chooses the target, `answers.py` asks a server how it is.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from tasks.answers import healthy
from tasks.config import DeploySettings, Params
from tasks.errors import ConfigError, StageError

logger = logging.getLogger(__name__)

LOGS = Path("logs")
RUN = Path(".run")

_numbers = itertools.count()


@contextmanager
def local_server(params: Params, data: Path | None) -> Iterator[str]:
    """A server process on this machine, in a process group of its own.

    It ends with the block, and, by the pipe that is its standard input, with this process
    however that dies.

    Args:
        params: `deploy` says where, `env`, `rewards` and `prepare` what is served.
        data: a folder of problems; None generates them.

    Raises:
        ConfigError: the port is taken.
        StageError: it dies or is not healthy in time; the message ends with its last log lines.
    """
    for folder in (LOGS, RUN):
        folder.mkdir(exist_ok=True)
    name = f"env-{os.getpid()}-{next(_numbers)}"
    settings = (RUN / f"{name}.yaml").resolve()
    settings.write_text(yaml.safe_dump(params.model_dump(by_alias=True, mode="json")))
    host, port = params.deploy.host, free_port(params.deploy)
    log = LOGS / f"{name}.log"
    written = log.absolute()  # the process may work elsewhere by the time it ends
    with log.open("wb") as stream:
        server = subprocess.Popen(
            [sys.executable, *f"-m env.server.app --until-eof --port {port} --host {host}".split()],
            env={
                **os.environ,
                "RLM_SETTINGS": str(settings),
                "RLM_DATA": str(data.resolve()) if data else "",
                "PYTHONPATH": _source_root(),
            },
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    stop = _stopper(server)
    atexit.register(stop)
    try:
        url = address(host, port)
        _wait(url, server, log, params.deploy.wait_s)
        settings.unlink()  # read by now; nothing is left behind however this process ends
        logger.info("environment at %s, log in %s", url, log)
        yield url
    finally:
        stop()
        atexit.unregister(stop)
        settings.unlink(missing_ok=True)
        if written.exists() and written.stat().st_size == 0:
            written.unlink()


def address(host: str, port: int) -> str:
    """Where this machine reaches a server that listens there."""
    return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"


def free_port(settings: DeploySettings) -> int:
    """The port to use; 0 picks a free one.

    Raises:
        ConfigError: it is taken, or the host is none of this machine's.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            raise ConfigError(
                f"deploy: {settings.host}:{settings.port} cannot be used ({error.strerror}); "
                "stop what listens there, or set deploy.port=0 to pick a free port"
            ) from None
        port: int = probe.getsockname()[1]
    return port


def _wait(url: str, server: subprocess.Popen[bytes], log: Path, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while True:
        if server.poll() is not None:
            code, why = server.returncode, _refusal(log) or f"\n{_tail(log)}"
            raise StageError(f"deploy: the environment's server ended with code {code}: {why}")
        if healthy(url, timeout_s=5.0):
            return
        if time.monotonic() > deadline:
            raise StageError(
                f"deploy: {url} is not healthy after {wait_s:g} s (deploy.wait_s); "
                f"the end of {log}:\n{_tail(log)}"
            )
        time.sleep(0.1)


def _refusal(log: Path) -> str | None:
    """Why the server would not start, in its own words; the web framework adds a page to them."""
    found = re.findall(r"^SystemExit: (.+)", log.read_text("utf-8", errors="replace"), re.M)
    return str(found[-1]) if found else None


def _tail(log: Path, lines: int = 15) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.splitlines()[-lines:]) or "(its log is empty)"


def _source_root() -> str:
    """PYTHONPATH of the server: this project's root before what is there already."""
    root = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))


def _stopper(server: subprocess.Popen[bytes]) -> Any:
    pid = os.getpid()

    def stop() -> None:
        # A forked child inherits this function, but the server is not its to stop.
        if os.getpid() != pid or server.returncode is not None:
            return
        with suppress(ProcessLookupError):
            server.terminate()
        try:
            server.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            logger.warning("the environment's server does not end; killing it")
        # Whatever of its group is left, sandbox processes included.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        if server.stdin is not None:
            with suppress(OSError):
                server.stdin.close()

    return stop
