"""Stage `deploy`: the targets `local` and `docker`, and the files that a deployment copies."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from helpers.sandbox_events import wait_for
from helpers.services import python

from env.client import Sessions
from env.models import RLMAction
from tasks.config import resolve
from tasks.config.params import Params
from tasks.deployment import build_context, docker
from tasks.deployment.environment import ENV_URL, environment
from tasks.deployment.local import local_server
from tasks.errors import ConfigError, StageError

FOREIGN = {"OPENAI_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "MLFLOW_TRACKING_PASSWORD"}
FOREIGN |= {"RLM_ENV_TOKEN", "MLFLOW_TRACKING_URI", "PREFECT_API_URL", "PREFECT_API_AUTH_STRING"}
FEW = "prepare.synthetic.collections={train: 1, validation: 1, test: 1}"


def test_the_server_inherits_no_key_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*FOREIGN, "RLM_OWN"):
        monkeypatch.setenv(name, "a-secret")
    with local_server(resolve(overrides=[FEW]), data=None):
        children = [c for c in psutil.Process().children() if c.status() != psutil.STATUS_ZOMBIE]
        servers = [child.environ() for child in children if "env.server.app" in child.cmdline()]
    (found,) = (names for names in servers if "RLM_OWN" in names)
    assert FOREIGN.isdisjoint(found)


def test_no_session_of_a_stage_ends_because_the_policy_is_slow() -> None:
    hasty = resolve(overrides=[FEW, "env.idle_timeout_s=0.1"])
    with local_server(hasty, data=None) as url, Sessions(url, 1) as sessions:
        sessions.reset(0, seed=0).result()
        time.sleep(0.5)
        assert sessions.step(0, RLMAction(text="FINAL([])")).result().frames


OTHER_RULES = {"env.search_window": 9, "env.limits.max_turns": 5, "rewards.read_chars": 150}


@pytest.mark.parametrize(("setting", "value"), OTHER_RULES.items())
def test_no_stage_uses_a_server_with_other_rules(server_url, monkeypatch, setting, value):
    monkeypatch.setenv(ENV_URL, server_url)
    params = resolve(overrides=[f"{setting}={value}"])
    with pytest.raises(ConfigError, match=rf"{setting} is \d+ there"), environment(params):
        pass


def test_a_server_that_dies_shows_why(tmp_path: Path) -> None:
    with (
        pytest.raises(StageError, match=r"server ended with code 3: .*no Parquet files") as caught,
        local_server(resolve(), data=tmp_path),
    ):
        pass
    assert "\n" not in str(caught.value)


# A shell's background job starts with SIGINT ignored, and hands that on.
_CHILD = f"""
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from tasks.config import resolve
from tasks.deployment.local import local_server
with local_server(resolve(overrides=[{FEW!r}]), data=None) as url:
    print(url, flush=True)
    time.sleep(60)
"""


def _listens(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_the_server_ends_with_the_process_that_started_it() -> None:
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
    starters = [python(_CHILD, stderr=subprocess.DEVNULL) for _ in signals]
    for starter, number in zip(starters, signals, strict=True):
        url = starter.stdout.readline().strip()
        assert _listens(url)
        starter.send_signal(number)
        starter.wait(timeout=60)
        assert wait_for(lambda url=url: not _listens(url), 30), number  # type: ignore[misc]
        starter.stdout.close()


# --- the target `docker`


@pytest.mark.parametrize(
    ("script", "error", "word"),
    [
        ('case "$1" in inspect) echo false;; logs) echo boom >&2;; esac', StageError, "boom"),
        ("echo no space left >&2; exit 1", StageError, "no space left"),
        ('case "$1" in build) exec sleep 60;; esac', StageError, "takes longer than 1 s"),
        (None, ConfigError, "deploy.target: local"),
    ],
)
def test_what_docker_cannot_do_is_said(tmp_path, monkeypatch, script, error, word):
    params = resolve(overrides=["deploy.target=docker", "threads=1", FEW])
    monkeypatch.delenv(ENV_URL, raising=False)
    monkeypatch.chdir(tmp_path)
    if script:
        (tmp_path / "docker").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if script else "/nowhere")
    run = docker._docker
    monkeypatch.setattr(docker, "_docker", lambda *words, **_: run(*words, wait_s=1.0))
    with pytest.raises(error, match=word), environment(params):
        pass


_WITHOUT_CAPABILITIES = """
import ctypes
from env.server.sandbox import SandboxHost
from env.server.sandbox.inside import confine
from env.settings import EnvSettings
for number in range(64):  # PR_CAPBSET_DROP, else the zygote's exec would gain them again
    ctypes.CDLL(None).prctl(24, number, 0, 0, 0)
assert confine._drop_capabilities()
host = SandboxHost(EnvSettings())
print(*host.enforced)
host.close()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to take its capabilities")
def test_root_without_capabilities_keeps_its_user_and_every_other_layer() -> None:
    layers = subprocess.check_output([sys.executable, "-c", _WITHOUT_CAPABILITIES]).decode().split()
    assert "uid" not in layers
    assert {"no_new_privs", "no_capabilities", "rlimits", "seccomp"} <= set(layers)


# --- limits of the container


def option(params: Params, name: str) -> str:
    given = docker.boundary(params)
    return given[given.index(name) + 1]


@pytest.mark.parametrize(("sessions", "frames"), [(256, 256), (8, 256), (8, 40)])
def test_every_frame_of_every_session_fits_into_the_limit_of_processes(sessions, frames):
    params = resolve(overrides=[f"env.max_sessions={sessions}", f"env.limits.max_frames={frames}"])
    assert 0 < int(option(params, "--pids-limit")) - sessions * (frames + 1) <= 100


def test_a_port_of_this_machine_answers_for_no_other_name() -> None:
    params = resolve(overrides=["env.allowed_hosts=[rlm.example]"])
    assert docker.with_localhost(params).env.allowed_hosts == ["rlm.example", "localhost"]


def test_the_container_has_no_rights_no_swap_and_writes_nowhere_but_tmp() -> None:
    params = resolve(overrides=["deploy.docker.memory_mb=2048"])
    assert option(params, "--memory") == option(params, "--memory-swap") == "2048m"
    given = " ".join(docker.boundary(params))
    assert "--cap-drop ALL --security-opt no-new-privileges" in given
    assert "--read-only --tmpfs /tmp" in given


# --- files of the build

FILES = (
    *("Dockerfile", ".dockerignore", "constraints.txt", "openenv.yaml", "env/__init__.py"),
    *("env/requirements.txt", "env/server/app.py", "env/server/page/page.js", "rewards/combine.py"),
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the files of a server, without git."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    monkeypatch.setattr(build_context, "SOURCE", tmp_path)
    return tmp_path


def git(project: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(project), *arguments], check=True, capture_output=True)


def test_only_tracked_files_are_copied_and_the_others_are_named(project, caplog):
    git(project, "init")
    git(project, "add", ".")
    (project / "env/notes.txt").write_text("a password")
    (project / "rewards/new.py").write_text("x = 1\n")
    (project / "env/link.txt").symlink_to("/etc/hostname")
    (project / "secrets.py").write_text("outside of the packages")
    assert sorted(build_context.source_files()) == sorted(FILES)
    (warning,) = [record.getMessage() for record in caplog.records]
    named = "env/link.txt, env/notes.txt, rewards/new.py. These files are not deployed"
    assert warning.startswith(f"deploy: git does not track {named}")


@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("link", ["env/notes.txt", "env/server"])
def test_a_link_is_refused(project: Path, link: str, tracked: bool) -> None:
    target = project / "elsewhere"
    if (project / link).is_dir():
        (project / link).rename(target)
    (project / link).symlink_to(target)
    if tracked:
        git(project, "init")
        git(project, "add", "--all")
    with pytest.raises(StageError, match=rf"{link}.* leads elsewhere: a deployment copies no link"):
        build_context.source_files()


def test_without_git_the_suffix_decides(project: Path) -> None:
    (project / "env/notes.txt").write_text("a password")
    (project / "env/.env").write_text("KEY=1")
    (project / "env/app.pyc").write_bytes(b"x")
    assert sorted(build_context.source_files()) == sorted(FILES)
