"""The services that `make up` keeps running: Prefect server and worker, MLflow server.

Each is a background process with its pid and log in `.run/`; starting twice changes nothing.
None of them is needed for `python -m flows.pipeline run`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from flows import automations, schedules
from flows.surroundings import die_with_parent, settle
from tasks.errors import PipelineError, StageError

RUN = Path(".run")
BIN = Path(sys.executable).parent
PREFECT_PORT = 4200
"""As prefect.toml says."""
PREFECT = f"http://127.0.0.1:{PREFECT_PORT}"
MLFLOW_PORT = os.environ.get("RLM_MLFLOW_PORT", "5000")
MLFLOW = f"http://127.0.0.1:{MLFLOW_PORT}"
POOL = "local"
WAIT_S = 180.0

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)


@dataclass(frozen=True)
class Service:
    """One background process."""

    name: str
    command: list[str]
    health: str | None = None
    """URL that answers when it is up; None: being alive is enough."""
    port: int | None = None
    env: dict[str, str] = field(default_factory=dict)


def prefect_server(port: int) -> Service:
    """A Prefect server; the one of `make up` schedules, others only record one run."""
    alone = [] if port == PREFECT_PORT else ["--no-services"]
    return Service(
        "prefect-server" if port == PREFECT_PORT else f"prefect-server-{port}",
        ["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port), *alone],
        f"http://127.0.0.1:{port}/api/health",
        port,
    )


SERVER = prefect_server(PREFECT_PORT)
# The worker's flows find this project: it is installed into the environment by `make setup`.
WORKER = Service("prefect-worker", ["prefect", "worker", "start", "--pool", POOL])
# One worker without job execution: 0.5 GB and 7 s instead of 2.7 GB and 24 s.
TRACKING = Service(
    "mlflow-server",
    [
        *["mlflow", "server", "--workers", "1", "--host", "127.0.0.1", "--port", MLFLOW_PORT],
        *["--backend-store-uri", "sqlite:///mlflow.db", "--artifacts-destination", "mlartifacts"],
    ],
    f"{MLFLOW}/health",
    int(MLFLOW_PORT),
    {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
)


@app.command()
def up() -> None:
    """Start what is not running, and create the work pool and the deployments."""
    start(SERVER)
    # Deploying to a pool that is missing prints a message and succeeds: the pool comes first.
    _prefect("work-pool", "create", POOL, "--type", "process", "--overwrite")
    _prefect("work-pool", "inspect", POOL)
    # One run at a time, whichever deployment asks: they all work in this folder.
    _prefect("work-pool", "set-concurrency-limit", POOL, "1")
    with schedules.kept():
        _prefect("--no-prompt", "deploy", "--all")
    automations.apply()
    start(WORKER)
    start(TRACKING)
    ui(open_pages=False)


@app.command()
def down() -> None:
    """Stop what `up` started."""
    for service in (TRACKING, WORKER, SERVER):
        stop(service)


@app.command()
def ui(open_pages: bool = True) -> None:
    """Say where the pages are, and open them where there is a display."""
    import webbrowser

    for name, service, url in (("Prefect", SERVER, PREFECT), ("MLflow", TRACKING, MLFLOW)):
        healthy = service.health is not None and answers(service.health)
        typer.echo(f"{name:8} {url}{'' if healthy else '   (not running: make up)'}")
        display = sys.platform == "darwin" or os.environ.get("DISPLAY")
        if open_pages and healthy and display:
            webbrowser.open(url)
    typer.echo("Report   reports/index.html")


@app.command()
def notify(
    url: Annotated[str, typer.Argument(help="Where to POST a JSON object.")],
) -> None:
    """Have Gated, Failed, Crashed and Promoted sent to a webhook, by Prefect's automations."""
    if not answers(f"{PREFECT}/api/health"):
        raise StageError("notify: Prefect's server does not run; start it with make up")
    for name in automations.apply(url):
        typer.echo(f"{name}: on")


def start(service: Service, quiet: bool = False, bound: bool = False) -> None:
    """Start a service unless it runs; returns when it is healthy.

    Args:
        service: which one.
        quiet: say nothing when all is well.
        bound: it ends with this process, even by SIGKILL (Linux).

    Raises:
        StageError: its port is taken, it dies, or it is not healthy in time.
    """
    log = log_file(service)
    if pid := running(service):
        if _command(pid)[1 - len(service.command) :] != service.command[1:]:
            raise StageError(
                f"{service.name} runs on another port; stop it with make down, then start it anew"
            )
        typer.echo(f"{service.name}: running")
        return
    if service.port is not None and not free(service.port):
        move = "or move ours with RLM_MLFLOW_PORT" if service.name == "mlflow-server" else ""
        raise StageError(
            f"{service.name}: port {service.port} is in use by another program; stop it {move}"
        )
    RUN.mkdir(exist_ok=True)
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [str(BIN / service.command[0]), *service.command[1:]],
            env={**os.environ, **service.env},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent if bound else None,
        )
    _pid_file(service).write_text(str(process.pid), encoding="utf-8")
    deadline = time.monotonic() + WAIT_S
    while service.health is not None and not answers(service.health):
        if process.poll() is not None or time.monotonic() > deadline:
            stop(service)
            raise StageError(f"{service.name} did not start; see {log}")
        time.sleep(0.5)
    if not quiet:
        typer.echo(f"{service.name}: started")


def stop(service: Service, quiet: bool = False) -> None:
    """Stop a service with all its processes; nothing happens when it does not run."""
    pid = running(service)
    _pid_file(service).unlink(missing_ok=True)
    if pid is None:
        return
    import psutil

    os.killpg(pid, signal.SIGTERM)
    try:
        psutil.Process(pid).wait(timeout=20.0)
    except psutil.NoSuchProcess:
        pass
    except psutil.TimeoutExpired:
        os.killpg(pid, signal.SIGKILL)
    if not quiet:
        typer.echo(f"{service.name}: stopped")


def running(service: Service) -> int | None:
    """The pid of the service, if the process that its file names is really that service.

    On whatever port: one that was moved is still found by who does not say where to.
    """
    try:
        pid = int(_pid_file(service).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    wanted = _but_port(service.command[1:])
    return pid if _but_port(_command(pid))[-len(wanted) :] == wanted else None


def for_one_run(url: str) -> bool:
    """Whether the address is that of a server which only records one run: it has no automations."""
    return any(url.startswith(f"http://127.0.0.1:{port}/") for port in _ports_of_single_runs())


def forget_dead() -> None:
    """Remove what servers of single runs left that were killed: the number and the log of each."""
    for port in _ports_of_single_runs():
        service = prefect_server(port)
        if running(service) is None:
            _pid_file(service).unlink(missing_ok=True)
            log_file(service).unlink(missing_ok=True)


def _ports_of_single_runs() -> list[int]:
    return [int(file.stem.rpartition("-")[2]) for file in RUN.glob("prefect-server-*.pid")]


def log_file(service: Service) -> Path:
    """What the service printed."""
    return RUN / f"{service.name}.log"


def _command(pid: int) -> list[str]:
    import psutil

    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:  # it ended, or belongs to someone else
        return []


def _but_port(command: list[str]) -> list[str]:
    ports = [place + 1 for place, word in enumerate(command) if word == "--port"]
    return [word for place, word in enumerate(command) if place not in ports]


def _pid_file(service: Service) -> Path:
    return RUN / f"{service.name}.pid"


def _prefect(*arguments: str) -> None:
    done = subprocess.run([str(BIN / "prefect"), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise StageError(f"prefect {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


def answers(health: str) -> bool:
    """Whether an address says that its server is well."""
    import httpx

    try:
        return httpx.get(health, timeout=2.0).is_success
    except httpx.HTTPError:
        return False


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def free(port: int) -> bool:
    """Whether nothing listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


if __name__ == "__main__":
    settle()
    try:
        app(prog_name="python -m flows.services")
    except PipelineError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        sys.exit(error.exit_code)
