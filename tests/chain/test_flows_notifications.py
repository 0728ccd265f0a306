"""What a run leaves on a real Prefect server, and what ends it there."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest
from prefect import flow
from prefect.states import Running

from flows import notifications
from flows.services import server_objects
from tasks.errors import StageError
from tasks.tracking import runs

pytestmark = pytest.mark.xdist_group("prefect")


def play(body: Callable[[], Any]) -> None:
    flow(name="rlm", log_prints=False)(body)(return_state=True)  # type: ignore[call-overload]


def test_an_automation_is_to_end_runs_without_heartbeats(prefect_url: str) -> None:
    server_objects.apply()
    server_objects.apply()
    (one,) = httpx.post(f"{prefect_url}/automations/filter", json={}).json()
    assert (one["name"], one["actions"][0]["state"]) == ("rlm killed", "CRASHED")


def test_the_reason_of_a_failure_is_in_the_logs_before_the_run_ends(prefect_url: str) -> None:
    logged: list[str] = []

    def failing() -> Any:
        with suppress(StageError), notifications.failure_told():
            raise StageError("prepare: it does not exist")
        logs = httpx.post(f"{prefect_url}/logs/filter", json={}).json()
        logged.extend(item["message"] for item in logs)

    play(failing)
    assert "failed: prepare: it does not exist" in logged


def test_the_run_of_a_killed_process_ends_crashed(prefect_url: str) -> None:
    from prefect import get_client

    @flow(name="rlm")
    def never() -> None: ...

    with get_client(sync_client=True) as client:
        run = client.create_flow_run(never, state=Running())
        notifications.crashed(str(run.id))
        notifications.crashed(None)
        state = client.read_flow_run(run.id).state
        assert state is not None
        assert state.is_crashed()
        assert state.message == "its process was killed"


def test_without_a_server_the_run_goes_on(tmp_path, monkeypatch, caplog, mlflow_store):
    from prefect.events.clients import NullEventsClient
    from prefect.events.worker import EventsWorker
    from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    # Events are not part of this test: each would be tried for a minute.
    monkeypatch.setattr(EventsWorker, "_client_override", (NullEventsClient, ()))
    monkeypatch.chdir(tmp_path)
    gone = {PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES: 0}
    with temporary_settings(gone):
        notifications.result("## better")
        notifications.link_to(runs.StageRun(runs.client(runs.tracking_uri()), "0" * 32))
    assert [record.levelname for record in caplog.records if record.name == "flows.notifications"]
    assert "the run continues" in caplog.text
