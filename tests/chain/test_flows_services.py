"""A run's own services end with it; a run does not end with its worker."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import httpx
import psutil
import pytest
from helpers.services import python
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import chain
from flows.services import processes, server_objects
from flows.services.__main__ import ui
from tasks.errors import StageError

ROOT = Path(__file__).parents[2]
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
    starter = python(STARTS.format(bound=bound), cwd=tmp_path)
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


def test_a_service_is_found_at_the_port_at_which_it_was_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, cmdline = [[]], psutil.Process.cmdline  # of a program that the kernel still loads
    monkeypatch.setattr(psutil.Process, "cmdline", lambda p: first.pop() if first else cmdline(p))
    command = ["python", "-c", "import time; time.sleep(300)", "--port"]
    started = processes.ServiceProcess("sleeper", [*command, "5001"])
    processes.start(started, quiet=True)
    try:
        health = "http://127.0.0.1:5000/health"
        asked = processes.ServiceProcess("sleeper", [*command, "5000"], health, 5000)
        found = processes.where_it_runs(asked)
        shutil.copytree(".run", "copy/.run")
        monkeypatch.chdir("copy")
        assert processes.running(asked) is None
    finally:
        monkeypatch.chdir(tmp_path)
        processes.stop(started, quiet=True)
    assert (found.port, found.health) == (5001, "http://127.0.0.1:5001/health")


def test_another_folders_server_is_not_ours_and_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(processes, "takes_password", lambda api: True)  # whatever it is
    monkeypatch.setattr(processes, "start", lambda server, **how: None)
    with temporary_settings({PREFECT_API_URL: processes.DEFAULT_API}):
        for named in (False, True):
            with chain.prefect_server():
                assert (PREFECT_API_URL.value() == processes.DEFAULT_API) == named
            monkeypatch.setenv("PREFECT_API_URL", processes.DEFAULT_API)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        service = processes.prefect_server(taken.getsockname()[1])
        named = rf"in use by process {os.getpid()} \(.+\) in {tmp_path}\. Stop it"
        with pytest.raises(StageError, match=named):
            processes.require_port(service)
    monkeypatch.setattr(processes, "answers", lambda health: True)
    ui(open_pages=False)
    assert capsys.readouterr().out.count("not running: make up") == 2


def test_a_server_that_stops_while_services_start_is_one_message(monkeypatch):
    monkeypatch.setattr("prefect.get_client", Mock(side_effect=httpx.ConnectError("refused")))
    with pytest.raises(StageError, match=r"Run make up again"):
        server_objects.apply()


SAYS = """
import logging
import sys
from rich.console import Console
from flows.runtime import exclusive
logging.basicConfig(level=logging.INFO)
print("it begins", flush=True)
with exclusive():
    sys.stdin.readline()
    logging.info("the first stage")  # for Prefect's page
    Console().print("the first stage")
    Console(stderr=True).print("its progress")
    print("the end", flush=True)
"""


@pytest.mark.parametrize("by_worker", [True, False])
def test_a_run_goes_on_when_the_worker_that_reads_what_it_prints_is_gone(tmp_path, by_worker):
    own = {"PREFECT__FLOW_RUN_ID": "of a worker"} if by_worker else {}
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.STDOUT}
    run = python(SAYS, cwd=tmp_path, env=own, **pipes)
    assert run.stdout.readline() == "it begins\n"
    run.stdout.close()
    run.stdin.write("now\n")
    run.stdin.close()
    code = run.wait(timeout=60)
    if by_worker:
        printed = (tmp_path / ".run/flow.log").read_text()
        assert (code, printed) == (0, "the first stage\nits progress\nthe end\n")
    else:  # a terminal's pipe that breaks ends a run, as it should
        assert code != 0


def test_own_servers_need_no_proxy_users_no_name_and_terminals_show_every_text(tmp_path):
    code = (
        "import os, pwd; pwd.getpwuid = {}.__getitem__; import flows.runtime as it;"
        "it.set_environment(); print(*map(os.environ.get, ('NO_PROXY', 'USER', 'HOME')), '✓')"
    )
    own = {"RLM_SERVICES_HOST": "10.0.0.2", "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    behind = {"HTTP_PROXY": "http://10.0.0.1:9", "NO_PROXY": "[::1],a.example"}
    environment = {**os.environ, **behind, **own}
    for name in ("no_proxy", "HOME", "LOGNAME", "USER", "LNAME", "USERNAME"):
        environment.pop(name, None)
    told = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, env=environment)
    hosts = "::1,a.example,127.0.0.1,localhost,10.0.0.2"
    assert told == f"{hosts} uid-{os.getuid()} {tmp_path}/.run \\u2713\n".encode()
    for proxy in ("carrier-pigeon://loft:7", "socks5://127.0.0.1:9"):
        environment["ALL_PROXY"] = proxy
        told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
        assert (told.returncode, told.stderr.count(b"\n")) == (1, 1)
        assert b"ALL_PROXY" in told.stderr
