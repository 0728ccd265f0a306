"""The deployment target `docker`: the environment as a container of this machine's engine.

Builds the staged tree with the `docker` command line, runs the image for as long as a block
lasts, and stops it. Neighbours: `staging.py` makes the tree, `local_server.py` is the same
without an engine.
"""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from env import access
from tasks.answers import healthy
from tasks.config import Params
from tasks.errors import ConfigError, StageError
from tasks.local_server import address, free_port
from tasks.staging import stage

logger = logging.getLogger(__name__)

TREE = Path("dist/docker")
PORT = 8000
"""As the Dockerfile exposes it."""
LABEL = "rlm-env"
"""Of our containers, whose names end in the process that started them."""
_LOG_LINES = 15
_STOP_S = 10
"""Seconds between SIGTERM and SIGKILL."""


@contextmanager
def container(params: Params, data: Path | None) -> Iterator[str]:
    """Address of a container that lives as long as the block.

    Args:
        params: `deploy` says where, `env`, `rewards` and `prepare` what is served.
        data: a folder of problems, mounted read-only; None generates them.

    Raises:
        ConfigError: there is no engine, or the port is taken.
        StageError: the image cannot be built, or is not healthy in time.
    """
    settings = params.deploy
    seed = str(params.prepare.synthetic.seed)
    tree = stage(params, "this machine's own", [], TREE)
    _docker(
        "build",
        "--quiet",
        "--tag",
        settings.docker.image,
        str(tree),
        wait_s=settings.docker.build_s,
    )
    _remove_leftovers()
    port = free_port(settings)
    name = f"{LABEL}-{os.getpid()}-{secrets.token_hex(3)}"
    mount = (
        ["--volume", f"{data.resolve()}:/problems:ro", "--env", "RLM_DATA=/problems"]
        if data
        else []
    )
    try:
        _docker(
            *(
                "run",
                "--detach",
                "--init",
                "--name",
                name,
                "--label",
                LABEL,
                "--env",
                access.SEED,
                *mount,
            ),
            *("--publish", f"{settings.host}:{port}:{PORT}", settings.docker.image),
            environment={access.SEED: seed},
        )
        url = address(settings.host, port)
        _wait(url, name, settings.wait_s)
        logger.info("environment at %s, container %s", url, name)
        yield url
    finally:
        _remove(name)


def _wait(url: str, name: str, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while not healthy(url, timeout_s=5.0):
        running = _docker("inspect", "--format", "{{.State.Running}}", name)
        if running != "true":
            raise StageError(f"deploy: the container {name} ended; its last lines:\n{_log(name)}")
        if time.monotonic() > deadline:
            raise StageError(
                f"deploy: {url} is not healthy after {wait_s:g} s (deploy.wait_s); the last lines "
                f"of the container {name}:\n{_log(name)}"
            )
        time.sleep(0.2)


def _log(name: str) -> str:
    done = subprocess.run(
        ["docker", "logs", "--tail", str(_LOG_LINES), name], capture_output=True, text=True
    )
    return (done.stdout + done.stderr).strip() or "(its log is empty)"


def _remove(name: str) -> None:
    """Stop it if it runs, and leave nothing; a container that never was is fine."""
    for command in (["stop", "--time", str(_STOP_S)], ["rm", "--force", "--volumes"]):
        subprocess.run(["docker", *command, name], capture_output=True)


def _remove_leftovers() -> None:
    """Containers whose process was killed before it could stop them."""
    names = _docker("ps", "--all", "--filter", f"label={LABEL}", "--format", "{{.Names}}")
    for name in names.split():
        process = name.removeprefix(f"{LABEL}-").partition("-")[0]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            _remove(name)


def _docker(
    *arguments: str, wait_s: float = 120.0, environment: dict[str, str] | None = None
) -> str:
    """What a command prints.

    Raises:
        ConfigError: there is no command line, or no engine behind it.
        StageError: it fails or takes too long; the message holds its last lines.
    """
    what = f"docker {arguments[0]}"
    try:
        done = subprocess.run(
            ["docker", *arguments],
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=wait_s,
        )
    except FileNotFoundError:
        raise ConfigError(
            "deploy: deploy.target is docker, but there is no `docker` command; install an engine, "
            "or set deploy.target: local"
        ) from None
    except subprocess.TimeoutExpired:
        raise StageError(
            f"deploy: {what} takes longer than {wait_s:g} s (deploy.docker.build_s for a build); "
            "look at what the engine does"
        ) from None
    if done.returncode == 0:
        return done.stdout.strip()
    said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-_LOG_LINES:])
    if "daemon" in said and "connect" in said.lower():
        raise ConfigError(
            f"deploy: no Docker engine answers ({said.splitlines()[0]}); start it, or set "
            "deploy.target: local"
        )
    raise StageError(f"deploy: {what} failed; its last lines:\n{said}")
