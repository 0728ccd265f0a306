"""The target `docker`: arguments of the command line, and messages when it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.config import resolve
from tasks.deployment import docker
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
