"""Events of a run, on a real Prefect server with a real webhook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers import fake_endpoint
from helpers.fake_endpoint import FakeServer
from helpers.registry import add_version
from helpers.sandbox_events import wait_for
from prefect import flow
from prefect.states import Failed, Running

from flows import notifications
from flows.services import automations
from tasks.errors import StageError
from tasks.registry import champions, versions
from tasks.tracking import runs

pytestmark = pytest.mark.xdist_group("prefect")
ADVICE = "the gate refused: raise warmstart.nano.steps"


@pytest.fixture(scope="module")
def notified(prefect_url: str) -> Iterator[FakeServer]:
    """A webhook, with the automations that call it in the server."""
    # Without an address those that call out are left away.
    assert automations.apply() == automations.apply() == ["rlm gated", "rlm failed", "rlm promoted"]
    found = httpx.post(f"{prefect_url}/automations/filter", json={}).json()
    assert [item["name"] for item in found] == ["rlm killed"]
    with fake_endpoint.serving() as webhook:
        webhook.raw = b"{}"
        automations.apply(f"{webhook.url}/notices")
        yield webhook


def told(webhook: FakeServer, key: str, value: str) -> dict[str, Any]:
    """The first notice with a value, which may still be on its way."""
    assert wait_for(lambda: any(body.get(key) == value for body in webhook.bodies), 60)
    return next(body for body in webhook.bodies if body.get(key) == value)


def play(body: Callable[[], Any]) -> None:
    flow(name="rlm", log_prints=False)(body)(return_state=True)  # type: ignore[call-overload]


def test_a_refusing_gate_is_told_with_its_advice(notified: FakeServer) -> None:
    def gated() -> Any:
        return Failed(name="Gated", message=ADVICE)

    play(gated)
    notice = told(notified, "event", "prefect.flow-run.Gated")
    assert (notice["state"], notice["message"]) == ("Gated", ADVICE)


def test_the_reason_of_a_failure_is_in_the_logs_before_the_run_ends(prefect_url: str) -> None:
    logged: list[str] = []

    def failing() -> Any:
        with suppress(StageError), notifications.failure_told():
            raise StageError("prepare: it does not exist")
        logs = httpx.post(f"{prefect_url}/logs/filter", json={}).json()
        logged.extend(item["message"] for item in logs)

    play(failing)
    assert "failed: prepare: it does not exist" in logged


def decided(verdict: str) -> str:
    """A new version about which this was decided; champion if it won. The run ends there."""
    version = add_version("weights")
    number = str(version.version)
    report = {
        "version": number,
        "verdict": verdict,
        "reason": f"reason {number}",
        "rule": {"mode": "greedy", "level": 0.99},
        "opponent": {"kind": "base", "version": None},
        "problems": "synthetic",
        "sets": [],
        "decided_at": "2026-01-31",
    }
    champions.write_decision(version, report)
    if verdict == "promoted":
        champions.crown(version, instead_of=versions.champion("rlm"))
    return number


def test_each_promotion_is_told_once_whoever_was_killed(
    notified: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_store: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    notifications.promotion("rlm")  # before any decision
    decided("promoted")  # killed, and the next run tells it
    notifications.promotion("rlm")
    notifications.promotion("rlm")
    decided("kept")
    notifications.promotion("rlm")
    third = decided("promoted")
    champions.rollback("rlm", None)
    notifications.promotion("rlm")
    champions.rollback("rlm", third)  # an operator did this, so it is not announced
    notifications.promotion("rlm")
    decided("promoted")
    notifications.promotion("rlm")
    told(notified, "version", "4")
    promotions = [item for item in notified.bodies if item.get("model") == "rlm"]
    assert [(item["version"], item["message"]) for item in promotions] == [
        ("1", "reason 1"),
        ("4", "reason 4"),
    ]


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
