"""Servers on PostgreSQL and S3 that hosts share: what is set up, survives and is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from helpers import shared_stores
from helpers.shared_stores import Postgres, S3Server

from benchmarks.faults import Host, servers
from env import variables
from flows.services import hosts, processes
from tasks.errors import ConfigError
from tasks.shared import remote

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("shared_stores")]


@dataclass
class Cluster:
    database: Postgres
    s3: S3Server
    server: Path
    host: Host


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Both servers as `up` starts them, and one host."""
    folder = tmp_path_factory.mktemp("cluster")
    with (
        shared_stores.s3(folder) as s3,
        shared_stores.database("prefect", "mlflow") as database,
        servers(
            folder / "server",
            s3.environment,
            PREFECT_SERVER_DATABASE_CONNECTION_URL=database.url("asyncpg", "prefect"),
            MLFLOW_BACKEND_STORE_URI=database.url("psycopg", "mlflow"),
        ) as shared,
    ):
        host = Host.make(folder / "host", shared)
        yield Cluster(database, s3, folder / "server", host)


def api(host: Host, code: str) -> Any:
    """Value that code prints with a client of Prefect's server."""
    start = (
        "import json\nfrom prefect import get_client\nwith get_client(sync_client=True) as client:"
    )
    return host.ask(f"{start}\n    print(json.dumps({code}))")


def flow_runs(host: Host) -> int:
    return len(api(host, "[str(run.id) for run in client.read_flow_runs()]"))


def test_each_pool_has_each_deployment_and_one_run_at_a_time_is_allowed(cluster: Cluster) -> None:
    found = api(cluster.host, "[[d.name, d.work_pool_name] for d in client.read_deployments()]")
    names = [d["name"] for d in yaml.safe_load(Path("prefect.yaml").read_text())["deployments"]]
    wanted = {(name + suffix, pool) for pool, suffix in hosts.POOLS.items() for name in names}
    assert {(name, pool) for name, pool in found} == wanted
    steps = api(cluster.host, "[d.pull_steps for d in client.read_deployments()]")
    assert f"{{{{ ${variables.FOLDER} }}}}" in json.dumps(steps)  # hosts have folders of their own
    assert str(cluster.server) not in json.dumps(steps)
    limit = f"client.read_global_concurrency_limit_by_name({hosts.LIMIT!r}).limit"
    assert api(cluster.host, limit) == 1
    # A second request waits in its pool. In a deployment, a lease would end a run that does not
    # reach Prefect for some seconds.
    assert api(cluster.host, "[p.concurrency_limit for p in client.read_work_pools()]") == [1, 1]
    own = "[d.global_concurrency_limit is None for d in client.read_deployments()]"
    assert all(api(cluster.host, own))


LOGS = """
import json, sys, time
from pathlib import Path
from tasks.config.params import Params
from tasks.tracking import runs
Path("file.txt").write_text("of the run")
with runs.stage_run("train", Params.model_validate({"tracking": {"system_s": 0}})) as run:
    run.log_metrics({"a/before": 1.0}); run.flush()
    print("open", flush=True); sys.stdin.readline()
    run.log_metrics({"a/while": 2.0}); run.flush()
    print("lost", flush=True); sys.stdin.readline()
    runs.RETRY_S = run._next = 0
    run.log_metrics({"a/after": 3.0}); run.flush()
    run.log_artifact("file.txt")
    run.log_table([{"a": 1}], "rows"); run.log_table([{"a": 2}], "rows")  # reads the first one
found = run.client.get_run(run.run_id)
print(json.dumps([found.data.metrics, found.info.status, found.info.artifact_uri,
                  [a.path for a in run.client.list_artifacts(run.run_id)]]))
"""


def test_a_database_that_goes_away_in_mid_run_costs_no_number(cluster: Cluster) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LOGS],
        cwd=cluster.host.folder,
        env=cluster.host.environment | {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "open\n"
    cluster.database.stop()
    try:
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "lost\n"
    finally:
        cluster.database.start()
    out, err = process.communicate("\n", timeout=120)
    metrics, status, artifacts, files = json.loads(out.strip().splitlines()[-1])
    assert {"a/before": 1.0, "a/while": 2.0, "a/after": 3.0}.items() <= metrics.items()
    assert (status, files) == ("FINISHED", ["file.txt", "tables"])
    assert err.count("does not accept numbers") == 1
    # Its address names no host and no folder, so the artifacts may move.
    assert artifacts.startswith("mlflow-artifacts:/")
    beside = ("mlflow.db", "mlruns", "mlartifacts")
    assert not [
        n for n in beside if any((f / n).exists() for f in (cluster.host.folder, cluster.server))
    ]


HOLDS = """
import sys
from flows.runtime import settle; settle()
from flows.hosts import holding
with holding({request!r}, wait_s={wait_s}):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_two_runs_do_not_hold_the_store_together(cluster: Cluster) -> None:
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDS.format(request="a", wait_s=60)],
        cwd=cluster.host.folder,
        env=cluster.host.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None
    assert first.stdout.readline() == "held\n"
    second = cluster.host.run("-c", HOLDS.format(request="b", wait_s=3))
    assert second.returncode == 1
    assert "BusyError: another host's run goes on" in second.stderr.splitlines()[-1]
    first.communicate("\n", timeout=60)
    assert "held" in cluster.host.run("-c", HOLDS.format(request="b", wait_s=60)).stdout


ASKS = """
from uuid import UUID
from prefect import get_client
from prefect.deployments import run_deployment
from prefect.states import Crashed, Failed, Running
overrides = ["train.steps=1", "tracking.experiment='it\\'s <b>'"]
run = run_deployment("rlm/NAME", parameters={"overrides": overrides}, timeout=0)
with get_client(sync_client=True) as client:
    client.set_flow_run_state(run.id, Running(), force=True)
    client.set_flow_run_state(run.id, STATE, force=True)
"""


@pytest.mark.parametrize(
    ("name", "state", "more"),
    [
        ("full", "Crashed(message='Process exited with status code: -9. It was killed.')", 2),
        ("full", "Crashed(message='no heartbeat for 90 seconds; its host is gone')", 2),
        ("full", "Crashed(message='Process exited with status code: 1. An error.')", 1),
        ("full", "Failed(message='of a stage')", 1),
        ("retrain-gpu", "Crashed(message='Process exited with status code: -9.')", 2),
        # Nothing would count its crashes.
        ("evaluate", "Crashed(message='Process exited with status code: -9.')", 1),
    ],
)
def test_a_killed_run_is_started_again_with_its_parameters_and_a_failed_one_is_not(
    cluster: Cluster, name: str, state: str, more: int
) -> None:
    before = flow_runs(cluster.host)
    code = ASKS.replace("STATE", state).replace("NAME", name)
    cluster.host.run("-c", code).check_returncode()
    deadline = time.monotonic() + (60 if more == 2 else 15)
    while time.monotonic() < deadline and flow_runs(cluster.host) < before + 2:
        time.sleep(1)
    assert flow_runs(cluster.host) == before + more
    listed = "[r.parameters for r in client.read_flow_runs() if str(r.deployment_id)]"
    asked = api(cluster.host, listed)[-more:]
    assert all(parameters == asked[0] for parameters in asked)
    assert "<b>" in asked[0]["overrides"][1]


@pytest.mark.parametrize(
    ("variables", "pool", "says"),
    [
        ({}, "tpu", "the pool 'tpu' is unknown"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "gpu", "this host has no card for the pool gpu"),
        ({variables.REMOTE: ""}, "cpu", "RLM_REMOTE is not set"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong-secret"}, "cpu", "the key was refused"),
        ({"MLFLOW_TRACKING_URI": ""}, "cpu", "MLFLOW_TRACKING_URI names no server"),
        ({"PREFECT_API_URL": "http://127.0.0.1:9/api"}, "cpu", "PREFECT_API_URL: the server at"),
        ({"PREFECT_API_URL": "http://127.0.0.1:9"}, "cpu", "PREFECT_API_URL does not end in /api"),
        ({"PREFECT_API_URL": "http://127.0.0.1:x/api"}, "cpu", "PREFECT_API_URL: the server at"),
    ],
)
def test_a_worker_that_could_run_nothing_does_not_start(
    cluster: Cluster, variables: dict[str, str], pool: str, says: str
) -> None:
    done = cluster.host.run("-m", "flows.services", "worker", pool, **variables)
    assert done.returncode in (1, 2)
    assert len(done.stderr.strip().splitlines()) == 1
    assert says in done.stderr
    assert "wrong-secret" not in done.stderr


@pytest.mark.parametrize(
    ("variable", "status", "ahead_s", "says"),
    [
        ("MLFLOW_TRACKING_URI", 403, 0, "does not answer to this host name.*SERVER_ALLOWED_HOSTS"),
        ("MLFLOW_TRACKING_URI", 500, 0, "cannot list its experiments .status 500.*database"),
        ("PREFECT_API_URL", 401, 0, "refuses this host .401.*Set PREFECT_API_AUTH_STRING"),
        ("PREFECT_API_URL", 200, 99, r"clock of this host is (98|99) s behind that of Prefect"),
        ("PREFECT_API_URL", 200, -99, r"clock of this host is (99|100) s ahead of that of Prefect"),
    ],
)
def test_a_server_that_is_healthy_but_refuses_is_one_message(
    cluster: Cluster, variable: str, status: int, ahead_s: int, says: str
) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(time.time() + ahead_s)

        def do_GET(self) -> None:
            self.send_response(200 if self.path.endswith("/health") else status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        given = {variable: address + ("/api" if variable == "PREFECT_API_URL" else "")}
        done = cluster.host.run("-m", "flows.services", "worker", "cpu", **given)
        server.shutdown()
    assert done.returncode in (1, 2)
    assert re.search(says, done.stderr), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_run_whose_servers_are_gone_ends_before_it_writes(cluster: Cluster) -> None:
    gone = {"PREFECT_API_URL": "http://127.0.0.1:9/api"}
    done = cluster.host.run("-m", "flows.pipeline", "run", **gone)
    assert done.returncode == 1
    assert "PREFECT_API_URL: the server at http://127.0.0.1:9/api/health does" in done.stderr
    assert not (cluster.host.folder / "params.resolved.yaml").exists()


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("AWS_SECRET_ACCESS_KEY", "wrong-secret", r"RLM_REMOTE .*the key was refused"),
        ("MLFLOW_ARTIFACTS_DESTINATION", "s3://none/x", r"_DESTINATION .*bucket none does not"),
    ],
)
def test_up_refuses_a_place_in_s3_before_it_starts_a_server(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    for name, given in {**cluster.host.variables, variable: value}.items():
        monkeypatch.setenv(name, given)
    remote.opened.cache_clear()
    with pytest.raises(ConfigError, match=says) as found:
        hosts.require_buckets()
    remote.opened.cache_clear()
    assert "wrong-secret" not in str(found.value)


def test_an_old_database_is_refused_by_up(cluster: Cluster) -> None:
    """Its tables are those of an earlier MLflow, whose server says so; `up` shows the reason."""
    import psycopg

    address = cluster.database.url("psycopg", "mlflow")
    host = Host(cluster.host.folder, cluster.host.variables | {"MLFLOW_BACKEND_STORE_URI": address})
    code = "from flows.services import processes as p; p.start(p.TRACKING)"
    port = {variables.MLFLOW_PORT: str(processes.free_port())}
    with psycopg.connect(address.replace("+psycopg", ""), autocommit=True) as connection:
        found = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        connection.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
        try:
            done = host.run("-c", code, **port, MLFLOW_ARTIFACTS_DESTINATION="s3://rlm/mlflow")
        finally:
            connection.execute("UPDATE alembic_version SET version_num = %s", found)
    assert "mlflow-server did not start (" in done.stderr
    assert "out-of-date database schema" in done.stderr
    assert cluster.database.password not in done.stderr


def test_no_secret_is_in_a_log(cluster: Cluster) -> None:
    logs = [*cluster.server.glob(".run/*.log"), *cluster.host.folder.glob(".run/*.log")]
    assert len(logs) >= 2
    secrets = (cluster.database.password, cluster.s3.secret)
    assert not [log for log in logs for s in secrets if s in log.read_text(errors="replace")]
    assert not any(name in os.environ for name in (variables.REMOTE, variables.FENCE))
