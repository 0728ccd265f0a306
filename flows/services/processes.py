"""Background processes of `make up`: Prefect server and worker, MLflow server.

Their pids and logs are in `.run/`; starting a service twice changes nothing. A run by
`rlm run` does not need them.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from base64 import b64encode
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import typer

from env import variables
from flows.runtime import die_with_parent
from flows.services.password import CLIENTS, SERVERS, password
from flows.services.server_objects import POOL
from tasks import paths
from tasks.errors import StageError
from tasks.tracking import runs

BIN = Path(sys.executable).parent
PREFECT_PORT = int(os.environ.get(variables.PREFECT_PORT, "4200"))
"""Port of the server that schedules; the default is that of prefect.toml."""
MLFLOW_PORT = os.environ.get(variables.MLFLOW_PORT, "5000")
LOOPBACK = "127.0.0.1"
HOST = os.environ.get(variables.SERVICES_HOST) or LOOPBACK
HERE = LOOPBACK if HOST in ("0.0.0.0", "::") else HOST
"""Address at which this machine reaches its servers."""
MLFLOW = f"http://{HERE}:{MLFLOW_PORT}"
DEFAULT_API = "http://127.0.0.1:4200/api"
"""Address in prefect.toml, at which another folder's or project's server may answer."""
DATABASE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
DATABASES = {DATABASE, "PREFECT_API_DATABASE_CONNECTION_URL", "PREFECT_HOME"}
"""Variables that place Prefect's database."""
# `--no-services` would record no tasks either.
_RECORDS = {
    f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false"
    for name in (
        *("CANCELLATION_CLEANUP", "CLEANUP_RECONCILER", "EVENT_PERSISTER", "FOREMAN", "LATE_RUNS"),
        *("PAUSE_EXPIRATIONS", "REPOSSESSOR", "SCHEDULER", "TRIGGERS"),
    )
}
WAIT_S = 180.0
PLACES = ("--host", "--port", "--backend-store-uri", "--artifacts-destination")
"""Options whose values are addresses."""


@dataclass(frozen=True)
class ServiceProcess:
    """One background process."""

    name: str
    command: list[str]
    health: str | None = None
    """URL that answers when the service is up; None if a living process is enough."""
    port: int | None = None
    env: dict[str, str] = field(default_factory=dict)


def prefect_server(port: int) -> ServiceProcess:
    """A Prefect server; at `PREFECT_PORT` it schedules, at other ports it only records one run."""
    alone = port != PREFECT_PORT
    host, here = (LOOPBACK, LOOPBACK) if alone else (HOST, HERE)
    # Its own page may be opened at either address; no other origin may read answers.
    own = {"PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://{here}:{port},http://localhost:{port}"}
    # Prefect's own place is one file for all of a user's folders, whose servers then wait for each
    # other's locks.
    if not DATABASES & set(os.environ):
        own[DATABASE] = "sqlite+aiosqlite:///.run/prefect.db"
    return ServiceProcess(
        f"prefect-server-{port}" if alone else "prefect-server",
        ["prefect", "server", "start", "--host", host, "--port", str(port)],
        f"http://{here}:{port}/api/health",
        port,
        own | (_RECORDS if alone else {}),
    )


SERVER = prefect_server(PREFECT_PORT)
# Its flows can import this project, since `make setup` installs it into the environment.
WORKER = ServiceProcess("prefect-worker", ["prefect", "worker", "start", "--pool", POOL])
# MLflow reads these variables itself; on a command line, a password would be seen by all users.
STORES = {
    "MLFLOW_BACKEND_STORE_URI": ("--backend-store-uri", "sqlite:///mlflow.db"),
    "MLFLOW_ARTIFACTS_DESTINATION": ("--artifacts-destination", "mlartifacts"),
}
# MLflow's own list has 10.*, and so every site whose name begins like that.
_HOSTS = "MLFLOW_SERVER_ALLOWED_HOSTS"
_LOCAL = {} if HOST != LOOPBACK or _HOSTS in os.environ else {_HOSTS: "localhost:*,127.0.0.1:*"}
# One worker without job execution: 0.5 GB and 7 s instead of 2.7 GB and 24 s.
TRACKING = ServiceProcess(
    "mlflow-server",
    [
        *["mlflow", "server", "--app-name", "rlm", "--workers", "1"],
        *["--host", HOST, "--port", MLFLOW_PORT],
        *(word for name, words in STORES.items() if name not in os.environ for word in words),
    ],
    f"{MLFLOW}/health",
    int(MLFLOW_PORT),
    {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"} | _LOCAL,
)


def start(service: ServiceProcess, quiet: bool = False, bound: bool = False) -> None:
    """Start a service unless it runs; return when it is healthy.

    Args:
        service: the service.
        quiet: print nothing on success.
        bound: end the service with this process, even if that is killed (Linux).

    Raises:
        StageError: the port is in use, or the service dies or is not healthy after `WAIT_S`.
    """
    log = log_file(service)
    if pid := running(service):
        if _command(pid)[1 - len(service.command) :] != service.command[1:]:
            raise StageError(
                f"{service.name} runs on another port or store. Stop it with `make down` and start "
                "it again."
            )
        typer.echo(f"{service.name}: running")
        return
    require_port(service)
    paths.RUN.mkdir(exist_ok=True)
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [str(BIN / service.command[0]), *service.command[1:]],
            env=_environment(service),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent if bound else None,
        )
    _pid_file(service).write_text(str(process.pid), encoding="utf-8")
    deadline = time.monotonic() + WAIT_S
    # The kernel has no command line of a program that it still loads: `running` would miss it.
    while not (answers(service.health) if service.health else _command(process.pid)):
        if process.poll() is not None or time.monotonic() > deadline:
            stop(service)
            raise StageError(f"{service.name} did not start{_last_error(log)}. See {log}.")
        time.sleep(0.5)
    if not quiet:
        typer.echo(f"{service.name}: started")


def _environment(service: ServiceProcess) -> dict[str, str]:
    """Variables of a service; Prefect's get the password, and no keys that flows don't need."""
    if service.command[0] != "prefect":
        return {**os.environ, **service.env}
    kept = {name: value for name, value in os.environ.items() if name not in withheld()}
    return kept | service.env | dict.fromkeys((CLIENTS, SERVERS), password())


def withheld() -> list[str]:
    """Names of the keys that Prefect's processes don't get: who starts a run could read them.

    Every run needs MLflow's and Prefect's own; `variables.WORKER_KEYS` names others.
    """
    needed = os.environ.get(variables.WORKER_KEYS, "").split(",")
    return sorted(
        name
        for name in os.environ
        if name.upper().endswith(variables.KEYS)
        and not name.startswith(("MLFLOW_", "PREFECT_"))
        and name not in needed
    )


def _last_error(log: Path) -> str:
    """The last error in a log, in brackets; empty without one."""
    errors = re.findall(r"^.*(?:Error|Exception|ERROR)\S*: (.+)$", log.read_text("utf-8"), re.M)
    return f" ({runs.first_line(ValueError(errors[-1]))})" if errors else ""


def require_port(service: ServiceProcess) -> None:
    """Refuse a port that another program uses.

    Raises:
        StageError: the service does not run, and its port is in use.
    """
    if service.port is None or running(service) or free(service.port, HERE):
        return
    move = {
        TRACKING.name: f", or set {variables.MLFLOW_PORT}",
        SERVER.name: f", or set {variables.PREFECT_PORT}=4201 and "
        "PREFECT_API_URL=http://127.0.0.1:4201/api",
    }.get(service.name, "")
    raise StageError(
        f"{service.name}: port {service.port} is in use by {_listener(service.port)}. Stop "
        f"it{move}."
    )


def _listener(port: int) -> str:
    """Who listens on a port, in words: another folder's server has the same name."""
    import psutil

    with suppress(psutil.Error):  # of another user
        for one in psutil.net_connections("tcp"):
            if one.pid and one.status == psutil.CONN_LISTEN and one.laddr.port == port:
                process = psutil.Process(one.pid)
                return f"process {one.pid} ({process.name()}) in {process.cwd()}"
    return "another program"


def stop(service: ServiceProcess, quiet: bool = False) -> None:
    """Stop a service with all its processes; do nothing if it does not run."""
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


def running(service: ServiceProcess) -> int | None:
    """Pid of the service, if the process in its pid file is that service, at any address."""
    try:
        pid = int(_pid_file(service).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    wanted = _but_places(service.command[1:])
    return pid if _but_places(_command(pid))[-len(wanted) :] == wanted else None


def where_it_runs(service: ServiceProcess) -> ServiceProcess:
    """The service at the port at which it was started, which another shell may have chosen."""
    command = _command(pid) if (pid := running(service)) else []
    port = int(command[command.index("--port") + 1]) if "--port" in command else service.port
    health = (service.health or "").replace(f":{service.port}/", f":{port}/")
    return replace(service, port=port, health=health)


def forget_dead() -> None:
    """Remove the pid files and logs of killed servers that recorded one run."""
    for port in _ports_of_single_runs():
        service = prefect_server(port)
        if running(service) is None:
            _pid_file(service).unlink(missing_ok=True)
            log_file(service).unlink(missing_ok=True)


def _ports_of_single_runs() -> list[int]:
    return [int(file.stem.rpartition("-")[2]) for file in paths.RUN.glob("prefect-server-*.pid")]


def log_file(service: ServiceProcess) -> Path:
    """File with the output of the service."""
    return paths.RUN / f"{service.name}.log"


def _command(pid: int) -> list[str]:
    """Command line of a process of this folder; a copied folder has the pid files of another."""
    import psutil

    try:
        process = psutil.Process(pid)
        return process.cmdline() if process.cwd() == os.getcwd() else []
    except psutil.Error:  # it ended, or belongs to another user
        return []


def _but_places(command: list[str]) -> list[str]:
    """A command without its addresses: a service is the same one on another port or store."""
    named = [place for place, word in enumerate(command) if word in PLACES]
    left = {at for place in named for at in (place, place + 1)}
    return [word for place, word in enumerate(command) if place not in left]


def _pid_file(service: ServiceProcess) -> Path:
    return paths.RUN / f"{service.name}.pid"


def deploy() -> None:
    """Create the deployments of prefect.yaml in the server of `make up`.

    Raises:
        StageError: Prefect's command failed; the message holds its output.
    """
    command = [str(BIN / "prefect"), "--no-prompt", "deploy", "--all"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise StageError(f"prefect deploy --all failed:\n{done.stdout}{done.stderr}")


def is_ours(api: str) -> bool:
    """Whether a Prefect server's address was given, or is that of this folder's `make up`."""
    if api != DEFAULT_API or "PREFECT_API_URL" in os.environ:
        return True
    return running(SERVER) is not None and where_it_runs(SERVER).health == f"{api}/health"


def takes_password(api: str) -> bool:
    """Whether a Prefect server answers there, and isn't another folder's."""
    return answers(f"{api}/hello", f"Basic {b64encode(password().encode()).decode()}")


def answers(address: str, authorization: str = "") -> bool:
    """Whether an address answers with success; a busy server may take its time."""
    import httpx

    headers = {"Authorization": authorization} if authorization else {}
    try:
        return httpx.get(address, timeout=httpx.Timeout(2.0, read=20.0), headers=headers).is_success
    except (httpx.HTTPError, httpx.InvalidURL):
        return False


def free_port() -> int:
    """A port of this machine that no program uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def free(port: int, host: str) -> bool:
    """Whether no program listens on a port at an address of this machine."""
    with socket.socket() as probe, suppress(OSError):  # of a name: the server's message says more
        return probe.connect_ex((host, port)) != 0
    return True
