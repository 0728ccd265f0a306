"""Addresses of shared stores: what is refused before anything connects, and what stays hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from env import variables
from flows.services import processes
from tasks.errors import ConfigError
from tasks.shared import remote
from tasks.tracking import runs


@pytest.mark.parametrize(
    "place", ["/srv/remote", "s3://", "s3://BUCKET", "https://key:secret@host/bucket"]
)
def test_only_an_address_in_s3_is_a_shared_store(monkeypatch, place):
    monkeypatch.setenv(variables.REMOTE, place)
    with pytest.raises(ConfigError, match="not an address in S3") as found:
        remote.address()
    assert "secret" not in str(found.value)


@pytest.mark.parametrize("kind", ["postgresql+psycopg", "postgresql", "mysql", "mssql"])
def test_a_host_refuses_a_database_as_its_tracking_server(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"names a database \(\w+.*://db/mlflow\)") as found:
        runs.client(f"{kind}://user:secret@db/mlflow")
    assert "secret" not in str(found.value)


def test_the_error_of_a_server_is_shown_without_a_password(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "INFO: begins\nsqlalchemy.exc.ArgumentError: no postgresql://a:secret@db/x\nend\n"
    )
    assert processes._last_error(log) == " (no postgresql://db/x)"
    log.write_text("INFO: begins\n")
    assert processes._last_error(log) == ""
