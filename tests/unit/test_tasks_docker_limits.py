"""Limits of the container that the target `docker` starts."""

from __future__ import annotations

import pytest

from tasks.config import resolve
from tasks.config.params import Params
from tasks.deployment.docker import boundary, of_this_machine


def option(params: Params, name: str) -> str:
    given = boundary(params)
    return given[given.index(name) + 1]


@pytest.mark.parametrize(
    ("overrides", "least"),
    [
        ([], 256 * 257),
        (["env.max_sessions=8"], 8 * 257),
        (["env.max_sessions=8", "env.limits.max_frames=40"], 8 * 41),
    ],
)
def test_every_frame_of_every_session_fits_into_the_limit_of_processes(overrides, least):
    limit = int(option(resolve(overrides=overrides), "--pids-limit"))
    assert least < limit <= least + 100


@pytest.mark.parametrize(
    ("before", "after"),
    [("[]", ["localhost"]), ("[rlm.example]", ["rlm.example", "localhost"])],
)
def test_a_port_of_this_machine_answers_for_no_other_name(before, after):
    params = resolve(overrides=[f"env.allowed_hosts={before}"])
    assert of_this_machine(params).env.allowed_hosts == after


def test_the_container_has_no_rights_no_swap_and_writes_nowhere_but_tmp() -> None:
    params = resolve(overrides=["deploy.docker.memory_mb=2048"])
    assert option(params, "--memory") == option(params, "--memory-swap") == "2048m"
    given = " ".join(boundary(params))
    assert "--cap-drop ALL --security-opt no-new-privileges" in given
    assert "--read-only --tmpfs /tmp" in given
