"""Servers on PostgreSQL and S3 that hosts share: what is set up, survives and is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers import shared_stores
from helpers.hosts import Host, servers
from helpers.shared_stores import Postgres, S3Server

from env import variables

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
    assert "error: another host's run goes on" in second.stderr.splitlines()[-1]
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
        # Nothing would count its crashes.
        ("evaluate", "Crashed(message='Process exited with status code: -9.')", 1),
    ],
)
def test_a_killed_run_is_started_again_with_its_parameters_and_a_failed_one_is_not(
    cluster, name, state, more
):
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
        ({"AWS_SECRET_ACCESS_KEY": "wrong-secret"}, "cpu", "SignatureDoesNotMatch"),
        ({"MLFLOW_TRACKING_URI": ""}, "cpu", "MLFLOW_TRACKING_URI names no server"),
        (
            {"PREFECT_API_URL": "http://127.0.0.1:9/api"},
            "cpu",
            "PREFECT_API_URL: http://127.0.0.1:9/api",
        ),
    ],
)
def test_a_worker_that_could_run_nothing_does_not_start(cluster, variables, pool, says):
    done = cluster.host.run("-m", "flows.services", "worker", pool, **variables)
    assert done.returncode in (1, 2)
    assert len(done.stderr.strip().splitlines()) == 1
    assert says in done.stderr
    assert "wrong-secret" not in done.stderr


def test_no_secret_is_in_a_log(cluster: Cluster) -> None:
    logs = [*cluster.server.glob(".run/*.log"), *cluster.host.folder.glob(".run/*.log")]
    assert len(logs) >= 2
    secrets = (cluster.database.password, cluster.s3.secret)
    assert not [log for log in logs for s in secrets if s in log.read_text(errors="replace")]
    assert not any(name in os.environ for name in (variables.REMOTE, variables.FENCE))
