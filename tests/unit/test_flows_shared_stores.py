"""Addresses of shared stores: what is refused before anything connects, and what stays hidden."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from env import variables
from flows.services import hosts, processes, schedules
from tasks.errors import ConfigError
from tasks.shared import remote
from tasks.tracking import runs

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "place", ["/srv/remote", "s3://", "s3://BUCKET", "https://key:secret@host/bucket"]
)
def test_only_an_address_in_s3_is_a_shared_store(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv(variables.REMOTE, place)
    with pytest.raises(ConfigError, match="not an address in S3") as found:
        remote.address()
    assert "secret" not in str(found.value)


@pytest.mark.parametrize(("place", "found"), [("", None), ("s3://rlm/a/", "s3://rlm/a")])
def test_an_empty_variable_is_none_and_a_last_slash_is_nothing(
    monkeypatch: pytest.MonkeyPatch, place: str, found: str | None
) -> None:
    monkeypatch.setenv(variables.REMOTE, place)
    assert remote.address() == found


def test_a_missing_extra_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    remote.opened.cache_clear()
    with pytest.raises(ConfigError, match=r'extra s3\. Install it: pip .*"\.\[s3\]"'):
        remote.opened("s3://rlm/a")


@pytest.mark.parametrize("kind", ["postgresql+psycopg", "postgresql", "mysql", "mssql"])
def test_a_host_refuses_a_database_as_its_tracking_server(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"names a database \(\w+.*://db/mlflow\)") as found:
        runs.client(f"{kind}://user:secret@db/mlflow")
    assert "secret" not in str(found.value)


def test_deployments_of_hosts_name_no_folder_and_each_pool_has_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedules, "FILE", ROOT / schedules.FILE)
    made = json.loads(json.dumps(hosts.deployments()))
    assert str(ROOT) not in json.dumps(made)
    found = [(entry["name"], entry["work_pool"]["name"]) for entry in made["deployments"]]
    assert found == [
        *[("full", "cpu"), ("retrain", "cpu"), ("evaluate", "cpu")],
        *[("full-gpu", "gpu"), ("retrain-gpu", "gpu"), ("evaluate-gpu", "gpu")],
    ]
    assert not any(
        entry["work_pool"]["job_variables"]["stream_output"] for entry in made["deployments"]
    )


@pytest.mark.parametrize(
    ("host", "found"),
    [("10.0.0.5", "10.0.0.5"), ("0.0.0.0", "127.0.0.1"), ("", "127.0.0.1")],
)
def test_a_server_is_looked_for_where_it_listens(
    monkeypatch: pytest.MonkeyPatch, host: str, found: str
) -> None:
    monkeypatch.setenv(variables.SERVICES_HOST, host)
    for name in (variables.PREFECT_PORT, variables.MLFLOW_PORT):
        monkeypatch.delenv(name, raising=False)
    made = runpy.run_path(str(ROOT / "flows/services/processes.py"))
    assert made["SERVER"].health == f"http://{found}:4200/api/health"
    assert made["TRACKING"].health == f"http://{found}:5000/health"
    assert (host or found) in made["TRACKING"].command
    assert made["prefect_server"](4201).health == "http://127.0.0.1:4201/api/health"


def test_the_error_of_a_server_is_shown_without_a_password(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "INFO: begins\nsqlalchemy.exc.ArgumentError: no postgresql://a:secret@db/x\nend\n"
    )
    assert processes._last_error(log) == " (no postgresql://db/x)"
    log.write_text("INFO: begins\n")
    assert processes._last_error(log) == ""
