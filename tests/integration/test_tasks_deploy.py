"""Stage `deploy`: a server of its own, its limits, and its end."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from helpers.sandbox_events import wait_for

from tasks.config import resolve
from tasks.deployment.environment import ENV_URL, environment
from tasks.deployment.local import local_server
from tasks.errors import ConfigError, StageError

FOREIGN = {"OPENAI_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "MLFLOW_TRACKING_PASSWORD"}
FOREIGN |= {"RLM_ENV_TOKEN", "MLFLOW_TRACKING_URI", "PREFECT_API_URL"}
FOREIGN |= {"PREFECT_API_AUTH_STRING"}
FEW = "prepare.synthetic.collections={train: 1, validation: 1, test: 1}"


def test_the_server_inherits_no_key_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*FOREIGN, "RLM_OWN"):
        monkeypatch.setenv(name, "a-secret")
    with local_server(resolve(overrides=[FEW]), data=None):
        children = [c for c in psutil.Process().children() if c.status() != psutil.STATUS_ZOMBIE]
        servers = [child.environ() for child in children if "env.server.app" in child.cmdline()]
    (found,) = (names for names in servers if "RLM_OWN" in names)
    assert FOREIGN.isdisjoint(found)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("env.search_window=9", "env.search_window is 0 there"),
        ("env.limits.max_turns=5", "env.limits.max_turns is 8 there"),
        ("rewards.read_chars=150", "rewards.read_chars is 200 there"),
    ],
)
def test_no_stage_uses_a_server_with_other_rules(
    server_url: str, monkeypatch: pytest.MonkeyPatch, override: str, says: str
) -> None:
    monkeypatch.setenv(ENV_URL, server_url)
    with pytest.raises(ConfigError, match=says), environment(resolve(overrides=[override])):
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
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )
        for _ in signals
    ]
    for starter, number in zip(starters, signals, strict=True):
        assert starter.stdout is not None
        url = starter.stdout.readline().strip()
        assert _listens(url)
        starter.send_signal(number)
        starter.wait(timeout=60)
        assert wait_for(lambda url=url: not _listens(url), 30), number  # type: ignore[misc]
        starter.stdout.close()
