"""What the environment's server is started with."""

from __future__ import annotations

from contextlib import suppress

import psutil
import pytest

from env import variables
from tasks.config.params import Params
from tasks.deployment.local import local_server


def test_the_server_inherits_no_key_of_others(
    server_params: Params, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in variables.FOREIGN_KEYS:
        monkeypatch.setenv(name, "a-secret")
    monkeypatch.setenv("RLM_OWN", "kept")
    with local_server(server_params, None):
        found = next(filter(None, map(environment_of, psutil.Process().children(recursive=True))))
    assert variables.FOREIGN_KEYS.isdisjoint(found)
    assert found["RLM_OWN"] == "kept"


def environment_of(child: psutil.Process) -> dict[str, str] | None:
    """The variables of a server that this test has started."""
    with suppress(psutil.Error):
        if "env.server.app" in child.cmdline() and "RLM_OWN" in child.environ():
            return child.environ()
    return None
