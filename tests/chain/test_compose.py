"""compose.yaml: its schema, and the command of each service on this machine, without an engine.

Addresses, ports and passwords are replaced. PostgreSQL and S3 are those of `shared_stores`. No
registry of packages has MinIO, so its command runs a program of that name that notes its arguments.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from helpers import shared_stores
from helpers.shared_stores import program

from benchmarks.faults import Host, wait_for
from flows.services import hosts
from flows.services.processes import answers, free_port

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("shared_stores"),
]
ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
DATABASES = {
    "prefect": "PREFECT_SERVER_DATABASE_CONNECTION_URL",
    "mlflow": "MLFLOW_BACKEND_STORE_URI",
}


def test_the_file_fits_the_specification() -> None:
    try:
        from compose_spec import PyCompose
    except ImportError:
        pytest.fail("compose-spec is missing. Install: make setup-cluster")
    PyCompose.from_json(json.dumps(COMPOSE)).validate()
    wrong = {**COMPOSE, "services": {"one": {"image": "a", "comand": ["b"]}}}
    with pytest.raises(ValueError, match="comand"):
        PyCompose.from_json(json.dumps(wrong))


def test_what_a_service_names_exists() -> None:
    for name, service in COMPOSE["services"].items():
        assert set(service.get("depends_on", ())) <= set(COMPOSE["services"]), name
        assert {c["source"] for c in service.get("configs", ())} <= set(COMPOSE["configs"]), name
        volumes = {v.partition(":")[0] for v in service.get("volumes", ())}
        assert volumes <= set(COMPOSE["volumes"]), name
        if build := service.get("build"):
            assert (ROOT / build["dockerfile"]).is_file(), name
    published = [port for s in COMPOSE["services"].values() for port in s.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in published)


@dataclass
class Engine:
    """The services as processes of this machine."""

    folder: Path
    ports: dict[str, int]
    replaced: dict[str, str]
    """Texts of the file, and what is in their place here."""
    stack: ExitStack = field(default_factory=ExitStack)

    def text(self, value: str) -> str:
        value = re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: self.replaced[found[1]], value)
        for theirs, ours in self.replaced.items():
            value = value.replace(theirs, ours)
        return value

    def variables(self, name: str) -> dict[str, str]:
        given = COMPOSE["services"][name].get("environment", {})
        return {key: self.text(value) for key, value in given.items()}

    def command(self, name: str) -> list[str]:
        own = {"0.0.0.0": "127.0.0.1"} | {key: str(port) for key, port in self.ports.items()}
        return [self.text(own.get(word, word)) for word in COMPOSE["services"][name]["command"]]

    def host(self, name: str) -> Host:
        return Host.make(self.folder / name, self.variables(name))

    def start(self, name: str) -> subprocess.Popen[bytes]:
        host = self.host(name)
        self.stack.callback(host.kill)
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                self.command(name),
                cwd=host.folder,
                env=host.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def health(self, name: str) -> str:
        """Address that the service's own health check reads."""
        [url] = re.findall(r"http://[^']+", COMPOSE["services"][name]["healthcheck"]["test"][-1])
        port = re.findall(r":(\d+)/", url)[0]
        return url.replace(port, str(self.ports[port]))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("compose")
    with (
        shared_stores.s3(folder) as s3,
        shared_stores.database("prefect") as database,
    ):
        import psycopg

        admin = database.url("psycopg", "prefect").replace("+psycopg", "")
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute(COMPOSE["configs"]["databases"]["content"].encode())
        ports = {port: free_port() for port in ("4200", "5000")}
        replaced = {
            "POSTGRES_PASSWORD": database.password,
            "AWS_ACCESS_KEY_ID": s3.key,
            "AWS_SECRET_ACCESS_KEY": s3.secret,
            "@postgres/": f"@127.0.0.1:{database.port}/",
            "http://s3:9000": s3.url,
            "http://prefect:4200": f"http://127.0.0.1:{ports['4200']}",
            "http://mlflow:5000": f"http://127.0.0.1:{ports['5000']}",
        }
        found = Engine(folder, ports, replaced)
        with found.stack:
            for name in ("prefect", "mlflow"):
                found.start(name)
            for name in ("prefect", "mlflow"):
                wait_for(lambda name=name: answers(found.health(name)), 240, f"{name} answers")
            yield found


def test_the_servers_the_deployments_and_the_worker_find_each_other(engine: Engine) -> None:
    api = f"http://127.0.0.1:{engine.ports['4200']}/api"
    shared = engine.start("deployments")
    assert shared.wait(240) == 0, (engine.folder / "deployments.log").read_text()
    pools = httpx.post(f"{api}/work_pools/filter", json={}, timeout=30).json()
    assert {pool["name"] for pool in pools} == set(hosts.POOLS)
    names = {d["name"] for d in httpx.post(f"{api}/deployments/filter", json={}).json()}
    assert {"full", "full-gpu"} <= names

    engine.start("worker")
    workers = f"{api}/work_pools/cpu/workers/filter"
    wait_for(lambda: bool(httpx.post(workers, json={}).json()), 120, "the worker is known")

    # MLflow answers to its name in the file, and to no other one.
    search = f"http://127.0.0.1:{engine.ports['5000']}/api/2.0/mlflow/experiments/search"
    found = [
        httpx.get(search, params={"max_results": 1}, headers={"Host": name}).status_code
        for name in ("mlflow:5000", "evil:5000")
    ]
    assert found == [200, 403]


def test_the_stores_have_what_the_other_services_ask_for(engine: Engine, tmp_path: Path) -> None:
    # The database's own check, on the server that ran the file's statements.
    database = re.findall(r"@127.0.0.1:(\d+)/", engine.text("@postgres/"))[0]
    check, *words = COMPOSE["services"]["postgres"]["healthcheck"]["test"][1:]
    assert check == "pg_isready"
    subprocess.run([program(check), "--port", database, *words], check=True)
    names = {engine.variables(s)[v].rpartition("/")[2] for s, v in DATABASES.items()}
    assert names == {COMPOSE["services"]["postgres"]["environment"]["POSTGRES_DB"], "mlflow"}

    noted = tmp_path / "minio"
    noted.write_text('#!/bin/sh\necho "$@" > "$0.said"\n')
    noted.chmod(0o755)
    service = COMPOSE["services"]["s3"]
    [command] = [word.replace("/data", f"{tmp_path}/data") for word in service["command"]]
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run([*service["entrypoint"], command], env=path, check=True)
    assert (tmp_path / "minio.said").read_text() == f"server --address :9000 {tmp_path}/data\n"
    # Folders below the data's are buckets.
    [bucket] = (tmp_path / "data").iterdir()
    places = (
        COMPOSE["services"]["mlflow"]["environment"]["MLFLOW_ARTIFACTS_DESTINATION"],
        COMPOSE["services"]["worker"]["environment"]["RLM_REMOTE"],
    )
    assert [place.split("/")[2] for place in places] == [bucket.name] * 2
