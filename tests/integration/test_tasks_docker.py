"""The target `docker` and the files that a deployment copies: tracked ones, and no links."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.config import resolve
from tasks.deployment import build_context, docker
from tasks.deployment.environment import ENV_URL, environment
from tasks.errors import ConfigError, PipelineError, StageError


@pytest.mark.parametrize(
    ("script", "error", "word"),
    [
        ('case "$1" in inspect) echo false;; logs) echo boom >&2;; esac', StageError, "boom"),
        ("echo no space left >&2; exit 1", StageError, "no space left"),
        ('case "$1" in build) exec sleep 60;; esac', StageError, "takes longer than 1 s"),
        (None, ConfigError, "deploy.target: local"),
    ],
    ids=["a container that dies", "a build that fails", "a build without end", "no command"],
)
def test_what_docker_cannot_do_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str | None,
    error: type[PipelineError],
    word: str,
) -> None:
    few = "prepare.synthetic.collections={train: 2, validation: 1, test: 2}"
    params = resolve(overrides=["deploy.target=docker", "threads=1", few])
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
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_CAPABILITIES], capture_output=True, text=True, check=True
    )
    layers = done.stdout.split()
    assert "uid" not in layers
    assert {"no_new_privs", "no_capabilities", "rlimits", "seccomp"} <= set(layers)


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


@pytest.fixture
def checkout(project: Path) -> Path:
    git(project, "init")
    git(project, "add", ".")
    return project


def test_only_tracked_files_are_copied_and_the_others_are_named(
    checkout: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (checkout / "env/notes.txt").write_text("a password")
    (checkout / "rewards/new.py").write_text("x = 1\n")
    (checkout / "env/link.txt").symlink_to("/etc/hostname")
    (checkout / "secrets.py").write_text("outside of the packages")
    assert sorted(build_context.source_files()) == sorted(FILES)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(
        "deploy: git does not track env/link.txt, env/notes.txt, rewards/new.py. These files are "
        "not deployed"
    )


@pytest.mark.parametrize("link", ["env/data.toml", "env/server"])
def test_a_tracked_link_is_refused(checkout: Path, link: str) -> None:
    target = checkout / "elsewhere"
    if (checkout / link).is_dir():
        (checkout / link).rename(target)
    else:
        target.write_text("x")
    (checkout / link).symlink_to(target)
    git(checkout, "add", "--all")
    with pytest.raises(StageError, match=rf"{link}.* leads elsewhere: a deployment copies no link"):
        build_context.source_files()


def test_without_git_the_suffix_decides(project: Path) -> None:
    (project / "env/notes.txt").write_text("a password")
    (project / "env/.env").write_text("KEY=1")
    (project / "env/app.pyc").write_bytes(b"x")
    assert sorted(build_context.source_files()) == sorted(FILES)


@pytest.mark.parametrize("link", ["env/link.txt", "env/server/more"])
def test_without_git_every_link_is_refused(project: Path, link: str) -> None:
    (project / link).symlink_to("/etc")
    with pytest.raises(StageError, match=rf"{link} .*leads elsewhere"):
        build_context.source_files()
