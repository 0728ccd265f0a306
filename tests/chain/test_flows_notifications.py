"""Artifacts and events of a run, on a real Prefect server with a real webhook."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from prefect import flow
from prefect.states import Failed, Running

from flows import notifications
from flows.services import automations, processes
from tasks.config import write_resolved
from tasks.config.params import Params
from tasks.errors import ConfigError
from tasks.registry import champions, versions
from tasks.tracking import runs

pytestmark = pytest.mark.xdist_group("prefect")
ROOT = Path(__file__).parents[2]
ADVICE = "the gate refused: raise warmstart.nano.steps"
PIXEL = bytes.fromhex("89504e470d0a1a0a")


class Webhook(ThreadingHTTPServer):
    """Keeps the JSON objects that are posted to it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.told: list[dict[str, Any]] = []

    def wait_for(self, event: str) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while not (found := [item for item in self.told if item["event"] == event]):
            assert time.monotonic() < deadline, f"no {event} in {self.told}"
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
def webhook() -> Iterator[Webhook]:
    with Webhook() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def notified(prefect_url: str, webhook: Webhook) -> Webhook:
    """The webhook, with the automations that call it in the server."""
    # Without an address those that call out are left away.
    assert automations.apply() == automations.apply() == ["rlm gated", "rlm failed", "rlm promoted"]
    assert names(prefect_url) == ["rlm killed"]
    automations.apply(f"http://127.0.0.1:{webhook.server_port}/notices")
    return webhook


def names(url: str) -> list[str]:
    return [item["name"] for item in httpx.post(f"{url}/automations/filter", json={}).json()]


def artifacts(url: str, key: str) -> list[dict[str, Any]]:
    wanted = {"artifacts": {"key": {"any_": [key]}}}
    return list(httpx.post(f"{url}/artifacts/filter", json=wanted).json())


def play(body: Callable[[], Any]) -> None:
    flow(name="rlm", log_prints=False)(body)(return_state=True)  # type: ignore[call-overload]


def test_applying_again_makes_no_second_automation(prefect_url: str, notified: Webhook) -> None:
    automations.apply()  # as `make up` does; the address stays
    assert sorted(names(prefect_url)) == ["rlm failed", "rlm gated", "rlm killed", "rlm promoted"]


def test_a_refusing_gate_is_told_with_its_advice(notified: Webhook) -> None:
    def gated() -> Any:
        return Failed(name="Gated", message=ADVICE)

    play(gated)
    told = notified.wait_for("prefect.flow-run.Gated")
    assert (told["state"], told["message"]) == ("Gated", ADVICE)


def test_a_failure_is_told_with_its_words(notified: Webhook) -> None:
    def broken() -> None:
        raise ValueError('no "disk"')

    play(broken)
    told = notified.wait_for("prefect.flow-run.Failed")
    assert 'no "disk"' in told["message"]
    assert told["run"]


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_store: Path) -> None:
    """A working folder with an empty registry."""
    monkeypatch.chdir(tmp_path)


def decided(name: str, verdict: str) -> str:
    """A new challenger about which this was decided; champion if it won. The run ends there."""
    store = runs.client(runs.tracking_uri())
    if not versions.list_versions(name):
        store.create_registered_model(name)
    number = str(len(versions.list_versions(name)) + 1)
    weights = Path(f"kept-{number}") / versions.ARTIFACT / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_text(number)
    tags = {
        "weights_hash": versions.weights_hash(weights.parent),
        versions.SERVING: versions.serving(Params()),
    }
    store.create_model_version(name, source=str(Path(f"kept-{number}").resolve()), tags=tags)
    store.set_registered_model_alias(name, "challenger", number)
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


def promotions(webhook: Webhook, model: str, until: str) -> list[tuple[str, str]]:
    """Versions and reasons in the notices about a model, once this version is among them."""
    deadline = time.monotonic() + 60
    while True:
        found = [item for item in webhook.told if item.get("model") == model]
        if until in [item["version"] for item in found] or time.monotonic() > deadline:
            return [(item["version"], item["message"]) for item in found]
        time.sleep(0.1)


def test_each_promotion_is_told_once_whoever_was_killed(notified: Webhook, registry: None) -> None:
    def told() -> None:
        play(lambda: notifications.promotion("rlm"))

    told()  # before any decision
    decided("rlm", "promoted")  # killed, and the next run tells it
    told()
    told()
    decided("rlm", "kept")
    told()
    third = decided("rlm", "promoted")
    champions.rollback("rlm", None)
    told()
    champions.rollback("rlm", third)  # an operator did this, so it is not announced
    told()
    decided("rlm", "promoted")
    told()
    assert promotions(notified, "rlm", until="4") == [("1", "reason 1"), ("4", "reason 4")]


def test_the_stage_alone_tells_a_promotion_too(
    prefect_url: str, notified: Webhook, registry: None, warm: str
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    decided("alone", "promoted")
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        notifications.promotion("alone")  # without a server the event stays pending
    one_runs_own = processes.RUN / f"prefect-server-{urlsplit(prefect_url).port}.pid"
    one_runs_own.parent.mkdir(exist_ok=True)
    one_runs_own.write_text("1")
    with temporary_settings({PREFECT_API_URL: prefect_url}):
        notifications.promotion("alone")  # nor there, without automations
    champion = versions.champion("alone")
    assert champion is not None
    assert champions.is_news(champion)
    one_runs_own.unlink()
    write_resolved(Params.model_validate({"register": {"model_name": "alone"}}))
    done = subprocess.run(
        [warm, "-m", "flows.pipeline", "promote"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_API_URL": prefect_url},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    play(lambda: notifications.promotion("alone"))
    decided("alone", "promoted")
    play(lambda: notifications.promotion("alone"))

    assert promotions(notified, "alone", until="2") == [("1", "reason 1"), ("2", "reason 2")]


def test_a_registry_that_fails_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mlflow.db").write_bytes(bytes(range(256)) * 16)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    notifications.promotion("rlm")
    assert "file is not a database" in caplog.text
    assert "the run continues" in caplog.text


def test_no_address_is_no_webhook() -> None:
    with pytest.raises(ConfigError, match="https://host/path"):
        automations.apply("localhost")


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


def test_a_result_is_shown_as_text_table_and_pictures(
    prefect_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / notifications.PLOTS).mkdir(parents=True)
    (tmp_path / notifications.PLOTS / "reward_curve.png").write_bytes(PIXEL)
    score = {"before": 0.3, "after": 0.8, "difference": 0.5, "ci95": [0.4, 0.6], "mode": "greedy"}
    notifications.EVALUATION.write_text(json.dumps({"f1_greedy": score}))
    notifications.result("## better")
    (text,) = artifacts(prefect_url, "rlm-result")
    assert text["data"] == "## better"
    (table,) = artifacts(prefect_url, "rlm-evaluation")
    assert json.loads(table["data"])[0]["ci95"] == "+0.400 to +0.600"
    (picture,) = artifacts(prefect_url, "rlm-reward-curve")
    assert picture["data"] == "data:image/png;base64,iVBORw0KGgo="


def test_without_a_server_the_run_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mlflow_store: Path,
) -> None:
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


def test_a_run_whose_server_went_away_says_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from flows import chain, summary
    from tasks.errors import StageError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(chain, "console", chain.Console(soft_wrap=True))
    gone, started = httpx.ConnectError("refused"), time.time() - 1
    with pytest.raises(StageError, match="run the same command again"):
        chain.without_prefect(gone, started)
    summary.read_figures([summary.StageRow("push", "done", 1.0)], "http://127.0.0.1/#/runs/1")
    assert chain.without_prefect(gone, started) == 0
    assert "every stage is done" in capsys.readouterr().out
    with pytest.raises(StageError, match="went away"):
        chain.without_prefect(gone, time.time() + 60)  # the result of an earlier run
