"""A run's own services end with it; a run does not end with its worker."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from flows.services import __main__ as services
from flows.services import processes
from tasks.errors import StageError

STARTS = """
import time
from flows.services import processes
processes.start(
    processes.ServiceProcess("sleeper", ["python", "-c", "import time; time.sleep(300)"]),
               quiet=True, bound={bound})
print(open(".run/sleeper.pid").read(), flush=True)
time.sleep(300)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal at a parent's death")
@pytest.mark.parametrize("bound", [True, False])
def test_only_a_bound_service_dies_with_who_started_it(tmp_path: Path, bound: bool) -> None:
    root = Path(__file__).parents[2]
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTS.format(bound=bound)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    service = psutil.Process(int(starter.stdout.readline()))
    try:
        starter.kill()
        starter.wait(timeout=10)
        gone, alive = psutil.wait_procs([service], timeout=10 if bound else 1)
        assert ([service] == gone, [service] == alive) == (bound, not bound)
    finally:
        if service.is_running():
            os.killpg(service.pid, signal.SIGKILL)
        starter.stdout.close()


SAYS = """
import sys
from rich.console import Console
from flows.runtime import exclusive
print("it begins", flush=True)
with exclusive():
    sys.stdin.readline()
    Console().print("the first stage")
    Console(stderr=True).print("its progress")
    print("the end", flush=True)
"""


@pytest.mark.parametrize("by_worker", [True, False])
def test_a_run_goes_on_when_the_worker_that_reads_what_it_prints_is_gone(
    tmp_path: Path, by_worker: bool
) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    run = subprocess.Popen(
        [sys.executable, "-c", SAYS],
        cwd=tmp_path,
        env=environment | ({"PREFECT__FLOW_RUN_ID": "of a worker"} if by_worker else {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert run.stdin is not None
    assert run.stdout is not None
    assert run.stdout.readline() == b"it begins\n"
    run.stdout.close()
    run.stdin.write(b"now\n")
    run.stdin.close()
    code = run.wait(timeout=60)
    if by_worker:
        printed = (tmp_path / ".run/flow.log").read_text()
        assert (code, printed) == (0, "the first stage\nits progress\nthe end\n")
    else:  # a terminal's pipe that breaks ends a run, as it should
        assert code != 0


def test_a_service_on_another_port_is_told_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sleeps = ["python", "-c", "import time; time.sleep(300)", "--port"]
    moved = processes.ServiceProcess("sleeper", [*sleeps, "5001"])
    processes.start(moved, quiet=True)
    process = psutil.Process(processes.running(moved) or 0)
    try:
        health = f"http://127.0.0.1:{processes.free_port()}/health"
        usual = processes.ServiceProcess("sleeper", [*sleeps, "5000"], health)
        with pytest.raises(
            StageError, match=r"sleeper runs on another port or store\. .* `make down`"
        ):
            processes.start(usual)
        processes.stop(usual)
        assert psutil.wait_procs([process], timeout=10)[1] == []
    finally:
        if process.is_running():
            process.kill()


def test_nothing_is_started_when_a_port_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server, tracking = processes.prefect_server(processes.free_port()), processes.TRACKING
        monkeypatch.setattr(services, "SERVER", server)
        monkeypatch.setattr(services, "TRACKING", replace(tracking, port=port))
        with pytest.raises(StageError, match=f"mlflow-server: port {port} is in use"):
            services.up()
    assert list(tmp_path.iterdir()) == []


def test_servers_of_killed_runs_are_forgotten_and_living_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    processes.RUN.mkdir()
    dead, alive, kept = (processes.prefect_server(port) for port in (50_001, 50_002, 4200))
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)", *alive.command[1:]]
    process = subprocess.Popen(sleeper)
    try:
        for service, pid in ((dead, 2**22 + 1), (alive, process.pid), (kept, 2**22 + 1)):
            (processes.RUN / f"{service.name}.pid").write_text(str(pid))
            processes.log_file(service).write_text("a log")
        processes.forget_dead()
        left = sorted(path.name for path in processes.RUN.iterdir())
    finally:
        process.kill()
        process.wait()
    names = ("prefect-server", "prefect-server-50002")
    assert processes.for_one_run("http://127.0.0.1:50002/api")
    assert not processes.for_one_run("http://127.0.0.1:50001/api")
    assert not processes.for_one_run(f"{processes.PREFECT}/api")
    assert left == sorted(f"{name}.{end}" for name in names for end in ("log", "pid"))
