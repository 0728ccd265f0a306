"""The target `docker`: arguments of the command line, and messages when it fails."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from benchmarks.exploits.fields_expert import fields_expert
from env.problems.schema import to_row
from env.problems.store import ProblemStore
from tasks import deploy
from tasks.config import resolve
from tasks.config.params import Params
from tasks.deployment import checks, docker
from tasks.deployment.environment import ENV_URL, environment
from tasks.errors import ConfigError, StageError

FAKE = Path(__file__).parents[1] / "helpers/fake_docker.py"
QUICK = [
    *("deploy.target=docker", "threads=1", "deploy.wait_s=100"),
    "prepare.synthetic.collections={train: 2, validation: 1, test: 2}",
]


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    """Settings for a container, in a working folder of its own."""
    monkeypatch.delenv(ENV_URL, raising=False)
    read = resolve(overrides=QUICK)
    monkeypatch.chdir(tmp_path)
    return read


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `docker` command that follows the Dockerfile without an engine."""
    folder, bin_ = tmp_path / "docker", tmp_path / "bin"
    folder.mkdir()
    bin_.mkdir()
    (bin_ / "docker").write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    (bin_ / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_DOCKER", str(folder))
    return folder


@pytest.mark.timeout(240)
def test_a_container_is_built_played_and_removed(params: Params, state: Path) -> None:
    store = ProblemStore.generate(params.prepare.synthetic)
    ids = store.ids("test", "medium")[:2]
    deploy.DATA.mkdir(parents=True)
    rows = [to_row(store.get(one)) for one in store.ids("test")]
    pd.DataFrame(rows).to_parquet(deploy.DATA / "test.parquet")
    (state / "rlm-env-999999999-aa.pid").write_text("999999999")  # its process was killed
    with environment(params) as url:
        checks.check_problems(url, deploy.DATA)
        about = checks.metadata(url)
        trees = play(fields_expert(), url, [EpisodeSpec(one, seed=0) for one in ids], sessions=2)
    assert about["problems"] == len(rows)
    staged = yaml.safe_load((docker.TREE / "params.yaml").read_text())
    assert staged["env"]["allowed_hosts"] == ["localhost"]
    assert "seccomp" in about["sandbox_layers"]
    assert all(tree.void is None and len(tree.frames) > 1 for tree in trees)
    assert not list(state.glob("*.pid"))
    assert not checks.healthy(url, timeout_s=1.0)
    commands = [line.split()[0] for line in (state / "commands").read_text().splitlines()]
    assert [commands[0], *commands[-2:]] == ["build", "stop", "rm"]


def says(state: Path, *cases: str) -> None:
    """Replace the command by a script with these cases of its first argument."""
    script = "\n".join(["#!/bin/sh", 'case "$1" in', *cases, "esac", ""])
    (state.parent / "bin/docker").write_text(script)


def test_a_container_that_dies_shows_why(params: Params, state: Path) -> None:
    says(state, "inspect) echo false;;", "logs) echo boom >&2;;")
    with (
        pytest.raises(StageError, match=r"the container rlm-env-.* ended\. Its last lines:\nboom"),
        environment(params),
    ):
        pass


def test_a_build_that_fails_shows_its_last_lines(
    params: Params, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (state.parent / "bin/docker").write_text(
        "#!/bin/sh\necho no space left on device >&2\nexit 1\n"
    )
    with (
        pytest.raises(StageError, match=r"docker build failed\. Its last lines:\nno space left"),
        environment(params),
    ):
        pass


def test_a_build_that_never_ends_is_stopped(params: Params, state: Path) -> None:
    says(state, "build) exec sleep 60;;")
    with pytest.raises(StageError, match=r"longer than 0\.2 s.*deploy\.docker\.build_s"):
        docker._docker("build", wait_s=0.2)


def test_a_taken_port_is_said(params: Params, state: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        moved = params.model_copy(
            update={"deploy": params.deploy.model_copy(update={"port": port})}
        )
        with pytest.raises(ConfigError, match="cannot be used"), environment(moved):
            pass


def test_without_the_command_the_remedy_is_said(
    params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with (
        pytest.raises(ConfigError, match=r"`docker` command is missing.*deploy\.target: local"),
        environment(params),
    ):
        pass


@pytest.mark.skipif(shutil.which("docker") is None, reason="needs the docker command line")
def test_without_an_engine_the_remedy_is_said(
    params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with (
        pytest.raises(ConfigError, match=r"no Docker engine answers.*deploy\.target: local"),
        environment(params),
    ):
        pass


_WITHOUT_CAPABILITIES = """
import ctypes
from env.server.sandbox import SandboxHost
from env.server.sandbox.inside import confine
from env.settings import LimitSettings, SandboxSettings
for number in range(64):  # PR_CAPBSET_DROP, else the zygote's exec would gain them again
    ctypes.CDLL(None).prctl(24, number, 0, 0, 0)
assert confine._drop_capabilities()
host = SandboxHost(LimitSettings(), SandboxSettings())
print(*host.enforced)
host.close()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to take its capabilities")
def test_root_without_capabilities_keeps_its_user_and_every_other_layer() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_CAPABILITIES], capture_output=True, text=True, check=True
    )
    layers = done.stdout.split()
    assert "uid" not in layers
    assert {"no_new_privs", "no_capabilities", "rlimits", "seccomp"} <= set(layers)
