"""Deployment target `local`: a server process on this machine."""

from __future__ import annotations

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
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import yaml

from env import variables
from tasks import paths
from tasks.config.params import Params
from tasks.deployment.checks import healthy
from tasks.errors import StageError

logger = logging.getLogger(__name__)

LOGS = Path("logs")
HOST = "127.0.0.1"
"""Nobody else reaches a server that has no token."""
HEALTHY_S = 120.0
"""Seconds until a server answers; it imports packages and makes problems first."""
_PATIENCE_S = 7 * 86_400.0
"""Least idle timeout of a run's own server, longer than any round of turns."""

_numbers = itertools.count()


@contextmanager
def local_server(params: Params, data: Path | None) -> Iterator[str]:
    """URL of a server process on this machine, in its own process group.

    The server ends with the block. It also ends if this process dies in any way, because its
    standard input is a pipe from this process.

    Args:
        params: `deploy` sets the address; `env`, `rewards` and `prepare` set what is served.
        data: folder of problems; None generates them.

    Raises:
        StageError: it dies or is not healthy in time; the message ends with its last log lines.
    """
    for folder in (LOGS, paths.RUN):
        folder.mkdir(exist_ok=True)
    name = f"env-{os.getpid()}-{next(_numbers)}"
    settings = (paths.RUN / f"{name}.yaml").resolve()
    log = LOGS / f"{name}.log"
    # This run owns the server and plays every split.
    sections = patient(params).model_dump(by_alias=True, mode="json", exclude={"env": {"splits"}})
    with ExitStack() as stack:
        stack.callback(_clean, settings, log.absolute())  # the block may change the directory
        with listener() as bound, log.open("wb") as stream:
            port = bound.getsockname()[1]
            at = f"--host {HOST} --port {port} --fd {bound.fileno()}"
            settings.write_text(yaml.safe_dump(sections))
            others = variables.KEYS + variables.ADDRESSES
            secret = {n for n in os.environ if n.upper().endswith(others)}
            secret -= {variables.OWNER_KEY}
            server = subprocess.Popen(
                [sys.executable, *f"-m env.server.app --until-eof {at}".split()],
                env={
                    **{n: value for n, value in os.environ.items() if n not in secret},
                    variables.SETTINGS: str(settings),
                    variables.DATA: str(data.resolve()) if data else "",
                    "PYTHONPATH": variables.python_path(),
                },
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=subprocess.STDOUT,
                pass_fds=[bound.fileno()],
                start_new_session=True,
            )
        stack.callback(_stop, server, os.getpid())
        url = f"http://{HOST}:{port}"
        _wait(url, server, log)
        settings.unlink()  # already read; a killed process leaves no file
        logger.info("environment at %s, log in %s", url, log)
        yield url


def patient(params: Params) -> Params:
    """Settings of a server that ends with its run, so it needn't end sessions that wait."""
    idle = max(params.env.idle_timeout_s, _PATIENCE_S)
    return params.model_copy(update={"env": params.env.model_copy(update={"idle_timeout_s": idle})})


def _clean(settings: Path, log: Path) -> None:
    """Delete the settings, and a log without a line."""
    settings.unlink(missing_ok=True)
    if log.exists() and log.stat().st_size == 0:
        log.unlink()


def listener() -> socket.socket:
    """Listening socket at a free port of this machine."""
    return socket.create_server((HOST, 0))


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + HEALTHY_S
    while True:
        if server.poll() is not None:
            code, why = server.returncode, _refusal(log) or f"\n{_tail(log)}"
            raise StageError(f"the environment's server ended with code {code}: {why}")
        if healthy(url, timeout_s=5.0):
            return
        if time.monotonic() > deadline:
            raise StageError(
                f"{url} is not healthy after {HEALTHY_S:g} s. See the end of {log}:\n{_tail(log)}"
            )
        time.sleep(0.1)


def _refusal(log: Path) -> str | None:
    """The server's own reason for not starting, without the traceback of the web framework."""
    reasons = re.findall(r"^SystemExit: (.+)", log.read_text("utf-8", errors="replace"), re.M)
    return str(reasons[-1]) if reasons else None


def _tail(log: Path) -> str:
    """The last lines of a log."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.splitlines()[-15:]) or "(its log is empty)"


def _stop(server: subprocess.Popen[bytes], owner: int) -> None:
    """End a server and the rest of its process group.

    Args:
        server: leads its group, and has a pipe as its standard input.
        owner: process that started it; a forked child must not stop it.
    """
    if os.getpid() != owner:
        return
    server.terminate()  # without effect on one that has ended
    try:
        server.wait(timeout=10.0)
    except subprocess.TimeoutExpired:
        logger.warning("the environment's server does not end and is killed")
    # Kill the rest of its group, sandbox processes included.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    if server.stdin is not None:
        with suppress(OSError):
            server.stdin.close()
