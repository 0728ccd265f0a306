"""Deployment target `docker`: the environment as a container of this machine's engine.

The `docker` command line builds the context of `build_context.py`, runs the image for the duration
of a block, and stops it.
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

from env import variables
from env.settings import TEMPLATES
from tasks.config.params import Params
from tasks.deployment.build_context import stage
from tasks.deployment.checks import healthy
from tasks.deployment.local import HEALTHY_S, HOST, listener, patient
from tasks.errors import ConfigError, StageError

logger = logging.getLogger(__name__)

TREE = Path("dist/docker")
PORT = 8000
"""Port that the Dockerfile exposes."""
LABEL = "rlm-env"
"""Image, label, and name prefix of the containers, which the id of their process follows."""
_BUILD_S = 1800.0
"""Most seconds of a build, which downloads packages."""
_OTHER_THREADS = 64
"""Threads and processes of the server besides those of its sessions."""
_LOG_LINES = 15
_STOP_S = 10
"""Seconds between SIGTERM and SIGKILL."""


@contextmanager
def container(params: Params, data: Path | None) -> Iterator[str]:
    """Address of a container that runs for the duration of the block.

    Args:
        params: `deploy` sets the memory; `env`, `rewards` and `prepare` set what is served.
        data: folder of problems, mounted read-only; None generates them.

    Raises:
        ConfigError: no engine runs.
        StageError: the image cannot be built, or is not healthy in time.
    """
    seed = str(params.prepare.synthetic.seed)
    tree = stage(with_localhost(patient(params)), "this machine's own", [], TREE)
    _docker("build", "--quiet", "--tag", LABEL, str(tree), wait_s=_BUILD_S)
    _remove_leftovers()
    with listener() as free:
        port = free.getsockname()[1]
    name = f"{LABEL}-{os.getpid()}-{secrets.token_hex(3)}"
    options = f"--detach --init --name {name} --label {LABEL} --env {variables.SEED}".split()
    if data:
        options += ["--volume", f"{data.resolve()}:/problems:ro", "--env", "RLM_DATA=/problems"]
    options += ["--publish", f"{HOST}:{port}:{PORT}", *boundary(params)]
    try:
        _docker("run", *options, LABEL, env={variables.SEED: seed})
        url = f"http://{HOST}:{port}"
        _wait(url, name)
        logger.info("environment at %s, container %s", url, name)
        yield url
    finally:
        _remove(name)


def with_localhost(params: Params) -> Params:
    """Settings of the server, which answers for this machine's names alone.

    In a container, it cannot tell by its own address that only this machine reaches it.
    """
    env = params.env.model_copy(update={"allowed_hosts": [*params.env.allowed_hosts, "localhost"]})
    return params.model_copy(update={"env": env})


def boundary(params: Params) -> list[str]:
    """Options of `docker run` that bound the container and take its rights.

    A session has one thread of the server, and one process for each frame of its tree.
    """
    env, memory = params.env, f"{params.deploy.docker.memory_mb}m"
    pids = env.max_sessions * (env.limits.max_frames + 1) + TEMPLATES + _OTHER_THREADS
    limits = f"--memory {memory} --memory-swap {memory} --pids-limit {pids}"
    rights = "--cap-drop ALL --security-opt no-new-privileges --read-only --tmpfs /tmp:size=64m"
    return f"{limits} {rights}".split()


def _wait(url: str, name: str) -> None:
    deadline = time.monotonic() + HEALTHY_S
    while not healthy(url, timeout_s=5.0):
        if _docker("inspect", "--format", "{{.State.Running}}", name) != "true":
            raise StageError(f"the container {name} ended. Its last lines:\n{_log(name)}")
        if time.monotonic() > deadline:
            raise StageError(
                f"{url} is not healthy after {HEALTHY_S:g} s. See the last lines "
                f"of the container {name}:\n{_log(name)}"
            )
        time.sleep(0.2)


def _log(name: str) -> str:
    done = subprocess.run(
        ["docker", "logs", "--tail", str(_LOG_LINES), name], capture_output=True, text=True
    )
    return (done.stdout + done.stderr).strip() or "(its log is empty)"


def _remove(name: str) -> None:
    """Stop and delete a container, if it exists."""
    for command in (["stop", "--time", str(_STOP_S)], ["rm", "--force", "--volumes"]):
        subprocess.run(["docker", *command, name], capture_output=True)


def _remove_leftovers() -> None:
    """Remove containers whose process was killed before it could stop them."""
    names = _docker("ps", "--all", "--filter", f"label={LABEL}", "--format", "{{.Names}}")
    for name in names.split():
        process = name.removeprefix(f"{LABEL}-").partition("-")[0]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            _remove(name)


def _docker(*arguments: str, wait_s: float = 120.0, env: dict[str, str] | None = None) -> str:
    """Output of a docker command.

    Raises:
        ConfigError: the command line is missing, or no engine answers it.
        StageError: it fails or takes too long; the message contains its last lines.
    """
    what = f"docker {arguments[0]}"
    try:
        done = subprocess.run(
            ["docker", *arguments],
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=wait_s,
        )
    except FileNotFoundError:
        raise ConfigError(
            "deploy.target is docker, but the `docker` command is missing. Install an engine, "
            "or set deploy.target: local."
        ) from None
    except subprocess.TimeoutExpired:
        raise StageError(
            f"{what} takes longer than {wait_s:g} s. Check the engine, and what "
            "the image downloads."
        ) from None
    if done.returncode == 0:
        return done.stdout.strip()
    output = "\n".join((done.stderr or done.stdout).strip().splitlines()[-_LOG_LINES:])
    if "daemon" in output and "connect" in output.lower():
        raise ConfigError(
            f"no Docker engine answers ({output.splitlines()[0]}). Start it, or set "
            "deploy.target: local."
        )
    raise StageError(f"{what} failed. Its last lines:\n{output}")
