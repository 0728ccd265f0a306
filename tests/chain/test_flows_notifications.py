"""Events of a run, on a real Prefect server with a real webhook."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect import flow
from prefect.states import Failed, Running

from flows import notifications
from flows.services import automations
from tasks.errors import StageError
from tasks.registry import champions, versions
from tasks.tracking import runs

pytestmark = pytest.mark.xdist_group("prefect")
ADVICE = "the gate refused: raise warmstart.nano.steps"


class Webhook(ThreadingHTTPServer):
    """Keeps the JSON objects that are posted to it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.told: list[dict[str, Any]] = []

    def wait_for(self, key: str, value: str) -> dict[str, Any]:
        """The first of which this is told."""
        deadline = time.monotonic() + 60
        while not (found := [item for item in self.told if item.get(key) == value]):
            assert time.monotonic() < deadline, f"no {value} in {self.told}"
            time.sleep(0.1)
        return found[0]


class Handler(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.told.append(json.loads(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def notified(prefect_url: str) -> Iterator[Webhook]:
    """A webhook, with the automations that call it in the server."""
    # Without an address those that call out are left away.
    assert automations.apply() == automations.apply() == ["rlm gated", "rlm failed", "rlm promoted"]
    found = httpx.post(f"{prefect_url}/automations/filter", json={}).json()
    assert [item["name"] for item in found] == ["rlm killed"]
    with Webhook() as server:
        automations.apply(f"http://127.0.0.1:{server.server_port}/notices")
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}).start()
        yield server
        server.shutdown()


def play(body: Callable[[], Any]) -> None:
    flow(name="rlm", log_prints=False)(body)(return_state=True)  # type: ignore[call-overload]


def test_a_refusing_gate_is_told_with_its_advice(notified: Webhook) -> None:
    def gated() -> Any:
        return Failed(name="Gated", message=ADVICE)

    play(gated)
    told = notified.wait_for("event", "prefect.flow-run.Gated")
    assert (told["state"], told["message"]) == ("Gated", ADVICE)


def test_the_reason_of_a_failure_is_in_the_logs_before_the_run_ends(prefect_url: str) -> None:
    logged: list[str] = []

    def failing() -> Any:
        with suppress(StageError), notifications.failure_told():
            raise StageError("prepare: it does not exist")
        logs = httpx.post(f"{prefect_url}/logs/filter", json={}).json()
        logged.extend(item["message"] for item in logs)

    play(failing)
    assert "failed: prepare: it does not exist" in logged


def decided(name: str, verdict: str) -> str:
    """A new version about which this was decided; champion if it won. The run ends there."""
    store = runs.client(runs.tracking_uri())
    if not versions.list_versions(name):
        store.create_registered_model(name)
    number = str(len(versions.list_versions(name)) + 1)
    weights = Path(f"kept-{number}") / versions.ARTIFACT / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_text(number)
    store.create_model_version(name, source=str(Path(f"kept-{number}").resolve()))
    version = versions.get_version(name, number)
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
        champions.crown(version, instead_of=versions.champion(name))
    return number


def test_each_promotion_is_told_once_whoever_was_killed(
    notified: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_store: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    notifications.promotion("rlm")  # before any decision
    decided("rlm", "promoted")  # killed, and the next run tells it
    notifications.promotion("rlm")
    notifications.promotion("rlm")
    decided("rlm", "kept")
    notifications.promotion("rlm")
    third = decided("rlm", "promoted")
    champions.rollback("rlm", None)
    notifications.promotion("rlm")
    champions.rollback("rlm", third)  # an operator did this, so it is not announced
    notifications.promotion("rlm")
    decided("rlm", "promoted")
    notifications.promotion("rlm")
    notified.wait_for("version", "4")
    promotions = [item for item in notified.told if item.get("model") == "rlm"]
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
        notifications.Progress().advance(0.5, "train")
        notifications.result("## better")
        notifications.link_to(runs.StageRun(runs.client(runs.tracking_uri()), "0" * 32))
    assert [record.levelname for record in caplog.records if record.name == "flows.notifications"]
    assert "the run continues" in caplog.text
