"""Stage `deploy`: start the environment, wait for its health, play one step over the wire.

Other stages use `environment(params)`: the server that `RLM_ENV_URL` names, or a local one for
their own duration. Writes `reports/deployment.json`.
"""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tasks.config import DeploySettings, Params
from tasks.errors import ConfigError, StageError
from tasks.outputs import write_json

if TYPE_CHECKING:
    from tasks.tracking import StageRun

logger = logging.getLogger(__name__)

ENV_URL = "RLM_ENV_URL"
DATA = Path("data/problems")
REPORT = Path("reports/deployment.json")
LOGS = Path("logs")
RUN = Path(".run")

_numbers = itertools.count()


def run(params: Params, run: StageRun) -> Path:
    """Start (or find) the environment, try it, and write down what it is.

    Raises:
        ConfigError: the port is taken, or `RLM_ENV_URL` does not answer or serves other settings.
        StageError: the server does not start, or the smoke test fails.
    """
    from tasks.tracking import versions

    with environment(params) as url:
        about = metadata(url)
        seconds = smoke_test(url)
        report = {
            "url": url,
            "target": params.deploy.target,
            # A local server that this stage started ends with it.
            "started_by": "RLM_ENV_URL" if os.environ.get(ENV_URL) else "stage",
            "sandbox": about.get("sandbox_layers", []),
            "sandbox_backend": about.get("sandbox_backend"),
            "sandbox_preload": about.get("sandbox_preload", []),
            "prompt_style": about.get("prompt_style"),
            "problems": about.get("problems"),
            "problem_source": about.get("problem_source"),
            "smoke_test_s": round(seconds, 3),
            "versions": versions(),
        }
        run.set_tags(
            {
                "env_url": url,
                "sandbox": ",".join(about.get("sandbox_layers", [])),
                "sandbox_backend": str(about.get("sandbox_backend")),
            }
        )
        run.log_metrics({"deploy/smoke_test_seconds": seconds})
        return write_json(REPORT, report)


@contextmanager
def environment(params: Params) -> Iterator[str]:
    """URL of a healthy environment; a local server lives as long as the block.

    Raises:
        ConfigError: the port is taken, or `RLM_ENV_URL` does not answer or serves other settings.
        StageError: the server does not start.
    """
    given = os.environ.get(ENV_URL)
    if given:
        url = given.rstrip("/")
        try:
            _get(f"{url}/health", timeout_s=10.0)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{ENV_URL}={given} does not answer ({error}); start that server, or unset "
                f"{ENV_URL} to let the stage start a local one"
            ) from None
        check_same(params, url, metadata(url))
        yield url
        return
    with local_server(params, data=DATA if any(DATA.glob("*.parquet")) else None) as url:
        yield url


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
    host, port = params.deploy.host, _port(params.deploy)
    log = LOGS / f"{name}.log"
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
        url = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"
        _wait(url, server, log, params.deploy.wait_s)
        settings.unlink()  # read by now; nothing is left behind however this process ends
        logger.info("environment at %s, log in %s", url, log)
        yield url
    finally:
        stop()
        atexit.unregister(stop)
        settings.unlink(missing_ok=True)
        if log.stat().st_size == 0:
            log.unlink()


def smoke_test(url: str) -> float:
    """Play one episode that answers nothing; seconds it took.

    Raises:
        StageError: no episode can be played there.
    """
    from env.client import Sessions
    from env.errors import EpisodeError, RefusedError
    from env.models import RLMAction

    started = time.monotonic()
    try:
        with Sessions(url, 1, message_timeout_s=60.0) as sessions:
            first = sessions.reset(0, seed=0).result()
            last = sessions.step(0, RLMAction(text="```repl\nFINAL([])\n```")).result()
    except (EpisodeError, RefusedError) as error:
        raise StageError(f"deploy: the smoke test at {url} failed: {error}") from error
    if not first.frames or not last.done or last.void is not None:
        raise StageError(
            f"deploy: the smoke test at {url} did not end as it must: "
            f"{last.void or 'the episode is not done'}; see the server's log"
        )
    return time.monotonic() - started


def metadata(url: str) -> dict[str, Any]:
    """What the server says of itself.

    Raises:
        StageError: it does not say it.
    """
    try:
        about = json.loads(_get(f"{url}/metadata", timeout_s=30.0))
    except (OSError, ValueError) as error:
        raise StageError(f"deploy: {url}/metadata does not answer: {error}") from None
    return dict(about)


def check_same(params: Params, url: str, about: dict[str, Any]) -> None:
    """A server that plays by other rules than ours must not be measured as if by ours.

    Raises:
        ConfigError: sandbox, prompt style, limits or weights differ; each difference is named.
    """
    here = {
        "env.sandbox.backend": params.env.sandbox.backend,
        "env.sandbox.preload": params.env.sandbox.preload,
        "env.prompt_style": params.env.prompt_style,
        "env.deterministic": params.env.deterministic,
        **{f"env.limits.{key}": value for key, value in params.env.limits},
        **{f"rewards.weights.{key}": value for key, value in params.rewards.weights},
    }
    there = {
        "env.sandbox.backend": about.get("sandbox_backend"),
        "env.sandbox.preload": about.get("sandbox_preload"),
        "env.prompt_style": about.get("prompt_style"),
        "env.deterministic": about.get("deterministic"),
        **{f"env.limits.{key}": value for key, value in about.get("limits", {}).items()},
        **{f"rewards.weights.{key}": value for key, value in about.get("weights", {}).items()},
    }
    other = [f"{key} is {there.get(key)!r} there" for key in here if there.get(key) != here[key]]
    if other:
        raise ConfigError(
            f"deploy: {url} serves other settings: {', '.join(other)}; start it with these "
            f"settings, or unset {ENV_URL} to let the stage start a local one"
        )


def _get(url: str, timeout_s: float) -> bytes:
    with urllib.request.urlopen(url, timeout=timeout_s) as response:
        body: bytes = response.read()
    return body


def _source_root() -> str:
    """PYTHONPATH of the server: this project's root before what is there already."""
    root = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))


def _port(settings: DeploySettings) -> int:
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
            raise StageError(
                f"deploy: the environment's server ended with code {server.returncode}:\n"
                f"{_tail(log)}"
            )
        with suppress(OSError, ValueError):
            if b"healthy" in _get(f"{url}/health", timeout_s=5.0):
                return
        if time.monotonic() > deadline:
            raise StageError(
                f"deploy: {url} is not healthy after {wait_s:g} s (deploy.wait_s); "
                f"the end of {log}:\n{_tail(log)}"
            )
        time.sleep(0.1)


def _tail(log: Path, lines: int = 15) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.splitlines()[-lines:]) or "(its log is empty)"


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
