"""Measure what recording costs a training, and what is lost, at many metric points a minute.

    python -m benchmarks.metrics [--points 20000] [--seconds 60] [--only NAME ...]

Writers log a hundred numbers a tick through `StageRun`, as trainings do, and should log `--points`
a minute together. Each runs in its own process. The stores are the file mlflow.db, an MLflow
server on SQLite, and one on PostgreSQL (`apt-get install -y postgresql; make setup-cluster`). Then
the rows of the database are counted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.cluster.stores import StoreMissingError, postgres
from flows.services.processes import BIN, answers, free_port
from tasks.tracking import runs

TICK = 100
"""Numbers of one call."""
WRITERS = (1, 4)


class Written(NamedTuple):
    """Measurement of one writer."""

    sent: int
    """Points that it logged."""
    recording_s: float
    """Seconds in calls of `log_metrics` and `end`."""
    longest_s: float
    late_s: float
    """Seconds by which its last tick was behind the plan."""


class MetricStore(NamedTuple):
    """A store under test."""

    uri: str
    """Address for clients."""
    database: str
    """File of SQLite, or address of PostgreSQL."""
    server: psutil.Process | None

    def count(self, run_ids: list[str]) -> int:
        """Points of these runs in the database."""
        return self._ask(
            "SELECT count(*) FROM metrics WHERE run_uuid IN "
            f"({', '.join(repr(run_id) for run_id in run_ids)})"
        )

    def bytes(self) -> int:
        """Size of the points with their indices."""
        if self.database.startswith("postgresql"):
            return self._ask("SELECT pg_total_relation_size('metrics')")
        return self._ask("SELECT sum(pgsize) FROM dbstat WHERE name LIKE '%metrics%'")

    def _ask(self, query: str) -> int:
        if not self.database.startswith("postgresql"):
            with closing(sqlite3.connect(self.database)) as store:
                return int(store.execute(query).fetchone()[0])
        import psycopg

        with psycopg.connect(self.database) as connection:
            found = connection.execute(query.encode()).fetchone()
            assert found is not None
            return int(found[0])


def write(uri: str, run_id: str, points_per_minute: float, seconds: float) -> Written:
    """Log at a rate for some seconds, as the main loop of a training does."""
    os.environ["MLFLOW_TRACKING_URI"] = uri
    run = runs.StageRun(runs.client(uri), run_id)
    run.log_metrics({"warm": 0.0})
    run.flush()
    every_s = 60.0 * TICK / points_per_minute
    calls: list[float] = []
    begun = time.monotonic()
    late = 0.0
    for tick in range(max(1, round(seconds / every_s))):
        due = begun + tick * every_s
        time.sleep(max(0.0, due - time.monotonic()))
        late = time.monotonic() - due
        started = time.monotonic()
        run.log_metrics({f"m/{number}": tick + number / TICK for number in range(TICK)}, step=tick)
        calls.append(time.monotonic() - started)
    started = time.monotonic()
    run.end("FINISHED")
    calls.append(time.monotonic() - started)
    return Written((len(calls) - 1) * TICK + 1, sum(calls), max(calls), late)


def measure(store: MetricStore, writers: int, points: float, seconds: float) -> str:
    """Row of the table: what writers sent, what is stored, what recording took."""
    client = runs.client(store.uri)
    names = [client.create_run("0").info.run_id for _ in range(writers)]
    before, cpu = store.bytes(), _cpu(store.server)
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(writers, mp_context=spawned) as pool:
        jobs = [pool.submit(write, store.uri, name, points / writers, seconds) for name in names]
        found = [job.result() for job in jobs]
    sent, stored = sum(one.sent for one in found), store.count(names)
    share = statistics.mean(one.recording_s for one in found) / seconds
    server = f"{(_cpu(store.server) - cpu) / seconds:.0%}" if store.server else "-"
    return (
        f"{writers} | {sent} | {sent - stored} | {share:.1%} | "
        f"{max(one.longest_s for one in found):.2f} | {max(one.late_s for one in found):.1f} | "
        f"{server} | {(store.bytes() - before) / max(stored, 1):.0f}"
    )


def _cpu(server: psutil.Process | None) -> float:
    """CPU seconds of a server and its living children."""
    if server is None:
        return 0.0
    return sum(sum(p.cpu_times()[:2]) for p in (server, *server.children(recursive=True)))


@contextmanager
def served(folder: Path, backend: str) -> Iterator[tuple[str, psutil.Process]]:
    """Address and process of an MLflow server with the options of `flows.services`."""
    port = free_port()
    with (folder / "mlflow.log").open("wb") as log:
        process = subprocess.Popen(
            [str(BIN / "mlflow"), "server", "--workers", "1", "--port", str(port)],
            cwd=folder,
            env={
                **os.environ,
                "MLFLOW_BACKEND_STORE_URI": backend,
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            },
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + 180
        while not answers(f"http://127.0.0.1:{port}/health"):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"MLflow did not start:\n{(folder / 'mlflow.log').read_text()}")
            time.sleep(0.3)
        yield f"http://127.0.0.1:{port}", psutil.Process(process.pid)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def file_store(folder: Path) -> Iterator[MetricStore]:
    """The file, without a server."""
    yield MetricStore(f"sqlite:///{folder}/mlflow.db", f"{folder}/mlflow.db", None)


@contextmanager
def sqlite_server(folder: Path) -> Iterator[MetricStore]:
    """A server on SQLite."""
    with served(folder, f"sqlite:///{folder}/mlflow.db") as (uri, process):
        yield MetricStore(uri, f"{folder}/mlflow.db", process)


@contextmanager
def postgres_server(folder: Path) -> Iterator[MetricStore]:
    """A server on PostgreSQL."""
    with postgres(folder / "pg", ["mlflow"]) as database:
        url = database.url("psycopg", "mlflow")
        with served(folder, url) as (uri, process):
            yield MetricStore(uri, url.replace("+psycopg", ""), process)


STORES = {
    "file mlflow.db": file_store,
    "server on SQLite": sqlite_server,
    "server on PostgreSQL": postgres_server,
}


def main() -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=float, default=20_000, help="points a minute")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each measurement")
    parser.add_argument("--only", nargs="*", choices=STORES, help="stores to measure")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {options.points:g} points a minute\n")
    print(
        "| store | writers | points | lost | of the writer's time | longest call, s | late, s | "
        "server's CPU | bytes a point |\n|---|---|---|---|---|---|---|---|---|"
    )
    for name in options.only or STORES:
        with tempfile.TemporaryDirectory(prefix="rlm-metrics-") as made:
            folder = Path(made)
            folder.chmod(0o755)  # PostgreSQL runs as another user
            try:
                with STORES[name](folder) as store:
                    for writers in WRITERS:
                        row = measure(store, writers, options.points, options.seconds)
                        print(f"| {name} | {row} |", flush=True)
            except StoreMissingError as error:
                print(error, file=sys.stderr)
                return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
