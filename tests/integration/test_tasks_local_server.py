"""What the environment's server is started with."""

from __future__ import annotations

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
        [server] = [
            child
            for child in psutil.Process().children(recursive=True)
            if "env.server.app" in child.cmdline()
            and child.environ().get("RLM_SETTINGS", "").startswith(str(tmp_path))
        ]
        found = server.environ()
    assert variables.FOREIGN_KEYS.isdisjoint(found)
    assert found["RLM_OWN"] == "kept"
