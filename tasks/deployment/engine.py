"""Engine of a training: servers of vLLM that the settings name, or one of the stage's own.

The own server is `vllm serve` in vLLM's environment, on the loopback interface of this machine. It
ends with the stage, however that ends. Neighbours: `agent/vllm/server.py` (command line
and client), `local.py` (the environment's server).
"""

from __future__ import annotations

import atexit
import json
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from agent.models.model_files import TWIN
from agent.vllm.server import ENVIRONMENT, MODULE, Engine, serve_arguments
from tasks.config.params import Params
from tasks.deployment.local import LOGS, stopper, tail
from tasks.errors import ConfigError, StageError

SAY_EVERY_S = 15.0
"""Seconds between lines of progress while a server starts."""


def require_engine(params: Params) -> None:
    """Check that the engine can be started, before anything expensive.

    Raises:
        ConfigError: vLLM's environment is missing.
    """
    engine = params.engine
    if engine.kind == "vllm" and not engine.urls and not Path(engine.python).is_file():
        raise ConfigError(
            f"engine.python: {engine.python} does not exist. Run make setup-vllm, name the servers "
            "in engine.urls, or set engine.kind=own."
        )


@contextmanager
def engine_servers(
    params: Params, base: Path, base_hash: str, say: Callable[[str], None]
) -> Iterator[Engine | None]:
    """The engine for the duration of the block; None if the model in training plays itself.

    Args:
        params: sections `engine` and `train`.
        base: folder of the base model.
        base_hash: its hash, which is part of the served name.
        say: prints a line of progress.

    Raises:
        StageError: the own server ends, or is not healthy in time; the message has its last lines.
    """
    settings = params.engine
    if settings.kind == "own":
        yield None
        return
    name = f"base-{base_hash}"
    port = 8000 if settings.urls else _free_port()
    # Of a 4-bit base, vLLM serves the twin.
    model = base / TWIN if (base / TWIN).is_dir() else base
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    positions = config.get("text_config", config).get("max_position_embeddings")
    frame_tokens = params.train.generation.max_frame_tokens
    arguments = serve_arguments(
        model.resolve(),
        name,
        settings,
        port=port,
        # vLLM would round float32 to 16 bits, but the trainer does not.
        dtype="float32"
        if "float32" in (config.get("dtype"), config.get("torch_dtype"))
        else "auto",
        frame_tokens=min(frame_tokens, positions or frame_tokens),
        rank=params.train.lora.r,
    )
    variables = " ".join(f"{key}={value}" for key, value in ENVIRONMENT.items())
    command = f"{variables} {shlex.join(['vllm', *arguments])}"
    if settings.urls:
        yield Engine([url.rstrip("/") for url in settings.urls], name, command)
        return
    with _own_server(settings.python, arguments, port, settings.wait_s, say) as url:
        yield Engine([url], name, command)


@contextmanager
def _own_server(
    python: str, arguments: list[str], port: int, wait_s: float, say: Callable[[str], None]
) -> Iterator[str]:
    """Address of a server of this stage; if it ends early, an error of the block says so."""
    LOGS.mkdir(exist_ok=True)
    log = (LOGS / f"engine-{os.getpid()}.log").resolve()
    # The modules of this project's folder, such as `mlflow`, are not vLLM's.
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    variables = {key: value for key, value in os.environ.items() if key not in hidden}
    with log.open("wb") as stream:
        server = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", python, "-m", MODULE, *arguments],
            env={**variables, "PYTHONSAFEPATH": "1", **ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    stop = stopper(server, "engine's server")
    atexit.register(stop)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, server, log, wait_s, say)
        say(f"engine at {url}, log in {log}")
        try:
            yield url
        except Exception as error:
            if server.poll() is None:
                raise
            raise StageError(f"{error} {_end(server, log)}") from error
    finally:
        stop()
        atexit.unregister(stop)


def _wait(
    url: str,
    server: subprocess.Popen[bytes],
    log: Path,
    wait_s: float,
    say: Callable[[str], None],
) -> None:
    started = time.monotonic()
    next_line = SAY_EVERY_S
    while True:
        if server.poll() is not None:
            raise StageError(_end(server, log))
        try:
            if httpx.get(f"{url}/health", timeout=5.0, trust_env=False).is_success:
                return
        except httpx.HTTPError:
            pass
        waited = time.monotonic() - started
        if waited > wait_s:
            raise StageError(
                f"the engine is not healthy after {wait_s:g} s. Raise engine.wait_s, or see the "
                f"end of {log}:\n{tail(log)}"
            )
        if waited > next_line:
            say(f"engine: vLLM loads the model ({waited:.0f} s)")
            next_line += SAY_EVERY_S
        time.sleep(0.2)


def _end(server: subprocess.Popen[bytes], log: Path) -> str:
    return (
        f"The engine's server ended with code {server.returncode}. If memory is short, lower "
        f"engine.kv_gb. The end of {log}:\n{tail(log, lines=30)}"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
