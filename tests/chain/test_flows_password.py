"""Prefect and MLflow as `make up` starts them: who may start a run, and what a run can read."""

import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from helpers.chain_runs import ROOT
from helpers.sandbox_events import wait_for
from helpers.services import Services, services_up
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from flows.services import processes
from flows.services.password import CLIENTS, PROFILE, password

pytestmark = pytest.mark.xdist_group("prefect")
FLOW = """
import os
from pathlib import Path
from prefect import flow

@flow
def toy(name: str = "scheduled"):
    written = Path(__file__).with_name("written")
    written.write_text(" ".join(os.environ))
    written.rename(written.with_name(name))
"""
DEPLOYMENT = """
deployments:
  - {name: full, entrypoint: "toy.py:toy", work_pool: {name: local}, schedules: [{interval: 15}]}
"""
PAGE = {"Origin": "http://page.example", "Content-Type": "text/plain"}
"""Headers of what any page may send with `fetch`, without being asked."""
KEYS = ("HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture(scope="module")
def services(
    tmp_path_factory: pytest.TempPathFactory, prefect_server: str, pytestconfig: pytest.Config
) -> Iterator[Services]:
    folder = tmp_path_factory.mktemp("services")
    (folder / "toy.py").write_text(FLOW)
    (folder / "prefect.yaml").write_text(DEPLOYMENT)
    shutil.copy(ROOT / "prefect.toml", folder)
    keys = {"RLM_WORKER_KEYS": KEYS[-1], **dict.fromkeys(KEYS, "a-canary")}
    with services_up(folder, pytestconfig, PYTHONPATH=str(ROOT), **keys) as (run, told):
        (folder / "told").write_text(told)
        yield run


def test_the_password_is_shown_to_the_user_and_readable_by_no_other(services, monkeypatch):
    monkeypatch.chdir(services.folder)
    monkeypatch.delenv(CLIENTS, raising=False)
    assert stat.S_IMODE(PROFILE.stat().st_mode) == 0o600
    told = Path("told").read_text()
    assert f"(password: {password()})" in told
    assert "/#/experiments/1/runs?compareRunsMode=CHART\n" in told
    assert "The worker has no HF_TOKEN, OPENAI_API_KEY;" in told
    assert processes.takes_password(services.api)
    monkeypatch.setenv(CLIENTS, "rlm:of-another-folder")
    assert not processes.takes_password(services.api)


def told_events(address: str, protocols: list[Subprotocol] | None) -> str | bytes:
    """Answer to a guess on a socket, which no rule of origins protects."""
    with connect(f"{address}/events/in", subprotocols=protocols) as socket:
        socket.send('{"type": "auth", "token": "rlm:"}')
        return socket.recv(timeout=20)


def test_a_page_of_another_origin_gets_nothing_and_starts_nothing(services):
    for headers in (PAGE, {"Host": "page.example"}, {**PAGE, "Authorization": "Basic cmxtOg=="}):
        for path in ("/deployments/filter", "/work_pools/filter", "/admin/settings"):
            answer = httpx.post(services.api + path, headers=headers, content="{}")
            assert answer.status_code == 401
            assert "access-control-allow-origin" not in answer.headers
    asked = {"Origin": PAGE["Origin"], "Access-Control-Request-Method": "POST"}
    preflight = httpx.options(f"{services.api}/deployments/filter", headers=asked)
    assert preflight.status_code == 400
    assert "access-control-allow-origin" not in preflight.headers
    for protocols in (None, [Subprotocol("prefect")]):
        with pytest.raises(WebSocketException):
            told_events(services.api.replace("http", "ws"), protocols)


def test_mlflow_has_no_assistant_and_answers_no_page_of_another_address(services):
    mlflow = f"http://127.0.0.1:{services.shell['RLM_MLFLOW_PORT']}"
    assistant = httpx.put(f"{mlflow}/ajax-api/3.0/mlflow/assistant/config", json={})
    assert assistant.status_code == 404  # its models may run commands
    sent = [{"Origin": "http://localhost:1"}, {"Origin": "null"}, {"Host": "10.page.example"}, {}]
    create = f"{mlflow}/api/2.0/mlflow/experiments/create"
    codes = [httpx.post(create, headers=one, json={"name": f"{one}"}).status_code for one in sent]
    assert codes == [403, 403, 403, 200]


def test_own_commands_and_schedules_start_runs_that_see_no_other_key(services):
    assert "toy/full" in services("prefect", "deployment", "ls")
    services("prefect", "deployment", "run", "toy/full", "-p", "name=asked")
    for name in ("asked", "scheduled"):
        written = services.folder / name
        assert wait_for(written.exists, 120)
        assert set(KEYS) & set(written.read_text().split()) == {KEYS[-1]}
