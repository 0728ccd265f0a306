"""A run that begins on one host and ends on another, on PostgreSQL and an S3 server.

    python -m benchmarks.cluster [--keep DIR] [--cut-off] [--quick] [--set KEY=VALUE]

Two hosts are two folders with a worker each; they share nothing but the stores. `rlm/full` begins
on host A. When the store has a checkpoint of its training, all processes of A get SIGKILL. With
`--cut-off` they get SIGSTOP, as if the network were gone. Host B must go on within three minutes.
Then A comes back, with its worker or the stopped processes. Exit code 1: a check failed.

`--quick` takes tiny settings, whose challenger need not become champion. PostgreSQL and HAProxy
come from the distribution, the S3 server from PyPI (`make setup-cluster`). HAProxy counts the bytes
between the S3 server and each host.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.cluster.hosts import (
    ClusterHost,
    flow_runs,
    registry,
    servers,
    start_run,
    wait_for,
)
from benchmarks.cluster.stores import StoreMissingError, postgres, s3_server
from benchmarks.cluster.traffic import CountedStore, counted
from env import auth
from tasks import holder, remote
from tasks.errors import ConfigError

TAKEOVER_S = 180.0
LONGEST_S = 3600.0
QUICK = [
    "prepare.synthetic.collections={train: 12, validation: 4, test: 8}",
    "audit.problems=6",
    "warmstart.nano.model={hidden: 64, layers: 2, heads: 2, mlp: 128}",
    "warmstart.nano.reading.plan={readers: 1, children: 0, pages: 0, names: 0}",
    "warmstart.nano.reading.plan={recite: 0, unread: 0}",
    "warmstart.nano.reading.size={'1': 0, '2': 0, '4': 0, '8': 1, '24': 0}",
    "warmstart.nano.reading.most={'8': 1, '16': 0, all: 0}",
    "warmstart.nano.reading.keep={field: 0, all: 0, first: 1}",
    "warmstart.nano.batch_tokens=1024",
    "warmstart.nano.learning_rate=0.004",
    "warmstart.nano.drill_steps=40",
    "warmstart.nano.drill_every=50",
    "warmstart.nano.probe_pairs=20",
    "warmstart.nano.slips=0",
    "warmstart.nano.noise=0",
    "train.steps=12",
    "train.save_every=2",
    "train.push_every=2",
    "train.processes=1",
    "evaluate.latency_episodes=1",
    "promote.problems=200",
    "promote.bootstrap=1000",
]


_CHECKPOINT = """
from pathlib import Path
from tasks.pushed_checkpoints import CheckpointPusher
CheckpointPusher(Path("models/checkpoints"), {}, 1).push()
"""
_CHAMPION = """
from tasks.registry import champions, versions
champions.crown(versions.list_versions("rlm")[0], versions.champion("rlm"))
"""


class Drill:
    """The two hosts, the checks that failed, and the times that were measured."""

    def __init__(
        self, folder: Path, shared: dict[str, str], store: CountedStore, options: argparse.Namespace
    ) -> None:
        self.a, self.b = (
            ClusterHost.make(folder / name, {**shared, "AWS_ENDPOINT_URL": store.urls[name]})
            for name in ("a", "b")
        )
        self.store, self.quick = store, options.quick
        self.parameters = {
            "profile": "quick" if self.quick else "nano",
            "overrides": [*(QUICK if self.quick else []), *options.set],
        }
        self.began = time.monotonic()
        self.figures: dict[str, Any] = {}
        self.wrong: list[str] = []

    def expect(self, holds: bool, otherwise: str) -> None:
        """Note a check that failed."""
        if not holds:
            self.wrong.append(otherwise)

    def tell(self, what: str) -> None:
        """Print what happens, and the minutes so far; the whole drill takes about 20."""
        minutes = (time.monotonic() - self.began) / 60
        print(f"{minutes:4.1f} min  {what}", file=sys.stderr, flush=True)

    def run(self, cut_off: bool) -> None:
        """Begin on A, lose it, go on at B, and bring A back."""
        self.tell("A begins the run")
        self.a.start_worker()
        start_run(self.a, self.parameters)
        wait_for(lambda: bool(pushed_step()), LONGEST_S, "a checkpoint in the store")
        self.b.start_worker()
        step = pushed_step()
        wait_for(lambda: max(self.a.steps(), default=0) > step, 300, "a step after the checkpoint")
        token = str(record()["token"])
        self.tell("A is lost after a checkpoint was pushed; B waits for its lease to end")
        self.lose_a(signal.SIGSTOP if cut_off else signal.SIGKILL)
        self.go_on_at_b()
        self.figures["seconds in all"] = round(time.monotonic() - self.began)
        self.figures["MB sent to and received from S3"] = {
            name: [round(count / 1e6, 1) for count in moved]
            for name, moved in self.store.moved().items()
        }
        self.tell("B has finished; A returns")
        before = self.state()
        if cut_off:
            self.a.send(signal.SIGCONT)
            wait_for(lambda: not running(self.a), 600, "the end of the stopped run")
            self.figures["A said"] = last_error(self.a.output)
        else:
            self.a.start_worker()
            self.figures["A said"] = self.late_writes(token)
        time.sleep(60)  # a run that somebody started would begin in this time
        self.expect(self.state() == before, f"A's return changed {before} to {self.state()}")
        self.check(before)

    def lose_a(self, number: signal.Signals) -> None:
        """Send all processes of A the signal."""
        self.figures["step in the store"] = pushed_step()
        self.figures["last step of A"] = max(self.a.steps())
        self.figures["processes of A that were hit"] = self.a.send(number)

    def go_on_at_b(self) -> None:
        """Wait for B's takeover and for the end of its run."""
        seconds = wait_for(lambda: "Taking over" in self.b.output, 600, "a takeover")
        self.figures["seconds until B took over"] = round(seconds)
        self.expect(seconds <= TAKEOVER_S, f"B took over after {seconds:.0f} s")
        seconds += wait_for(lambda: "train: resuming after" in self.b.output, 600, "a resume")
        self.figures["seconds until B trained on"] = round(seconds)
        self.figures["first step of B"] = int(
            re.findall(r"train: resuming after step (\d+)", self.b.output)[0]
        )
        self.tell("B goes on with the rest of the run")
        wait_for(lambda: flow_runs(self.b)[-1][1] in ENDED, LONGEST_S, "the end of B's run")
        self.figures["flow runs"] = [run[1] for run in flow_runs(self.b)]
        kept = re.findall(r"^= (\w+) ", self.b.output, re.M)
        self.figures["stages that B did not repeat"] = kept

    def late_writes(self, token: str) -> list[str]:
        """Push a checkpoint, results and a champion on A, with the number that it had."""
        said = []
        for late in (["-m", "flows.pipeline", "push"], ["-c", _CHECKPOINT], ["-c", _CHAMPION]):
            done = self.a.run(*late, **{auth.FENCE: token})
            said.append(done.stderr.strip().splitlines()[-1])
            refused = done.returncode == 1 and "another run took over" in said[-1]
            self.expect(refused, f"A's late {late} ended with {done.returncode}: {said[-1]}")
        return said

    def state(self) -> dict[str, Any]:
        """Registry, objects and runs, which must not change when A returns."""
        store = remote.store()
        pages = store.client.get_paginator("list_objects_v2").paginate(Bucket=store.bucket)
        objects = {e["Key"]: e["ETag"] for page in pages for e in page.get("Contents", [])}
        found = registry(self.b)
        models = {key: found[key] for key in ("versions", "champion")}
        dvc = {k: v for k, v in objects.items() if k.startswith(store.prefix)}
        return {**models, "objects": dvc, "flow runs": len(flow_runs(self.b))}

    def check(self, state: dict[str, Any]) -> None:
        """Check the result."""
        found = registry(self.b)
        again = self.figures["last step of A"] - self.figures["first step of B"]
        self.figures["steps of A played again"] = again
        states = self.figures["flow runs"]
        self.expect(states == ["Crashed", "Completed"], f"the flow runs ended {states}")
        self.expect(len(found["versions"]) == 1, f"versions: {found['versions']}")
        self.expect(self.quick or found["champion"] == "1", f"champion: {found['champion']}")
        self.expect(not found["running"], f"{found['running']} MLflow runs are open")
        self.expect(found["artifacts"].startswith("mlflow-artifacts:"), found["artifacts"])
        self.expect(
            self.figures["first step of B"] >= self.figures["step in the store"],
            "B began before the pushed checkpoint",
        )
        for host in (self.a, self.b):
            beside = ("mlflow.db", "mlruns", "mlartifacts", ".dvc-remote")
            there = [name for name in beside if (host.folder / name).exists()]
            self.expect(not there, f"{host.folder} has {there} beside the stores")
        self.figures["versions"], self.figures["champion"] = found["versions"], found["champion"]
        self.figures["objects in the store"] = len(state["objects"])


ENDED = ("Completed", "Failed", "Crashed", "Cancelled", "Gated")


def record() -> holder.Record:
    """The record of the run that holds the store."""
    return remote.store().read(holder.RECORD)[0] or {}


def pushed_step() -> int:
    """Step of the checkpoint in the store; 0 without one."""
    pushed = record().get("checkpoint")
    return int(pushed["step"]) if pushed else 0


def running(host: ClusterHost) -> bool:
    """Whether a run of the chain goes on at a host; its worker does not count."""
    lines = []
    for process in host.processes():
        try:
            lines.append(" ".join(process.cmdline()))
        except psutil.Error:  # it has just ended
            continue
    return any("prefect.engine" in line or "flows.pipeline" in line for line in lines)


def last_error(output: str) -> str:
    """Last line of an output that names an error."""
    found = re.findall(r"^.*Error: .+$", output, re.M)
    return str(found[-1]) if found else "nothing"


def leaks(folder: Path, secrets: list[str]) -> list[str]:
    """Files below a folder that contain a secret."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "password" and "/pg/data/" not in str(path):
            text = path.read_bytes()
            found += [str(path) for secret in secrets if secret.encode() in text]
    return found


def main() -> int:
    """Run the drill; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", type=Path, help="new folder for hosts and logs, which stays")
    parser.add_argument("--cut-off", action="store_true", help="stop host A, and continue it later")
    parser.add_argument("--quick", action="store_true", help="tiny settings, for a test")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the run"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = options.keep or Path(tempfile.mkdtemp(prefix="rlm-cluster-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    folder.chmod(0o755)  # PostgreSQL runs as another user
    try:
        with (
            postgres(folder / "pg", ["prefect", "mlflow"]) as database,
            s3_server(folder) as s3,
            counted(folder / "s3", s3.url, ["server", "a", "b"]) as store,
            servers(folder / "server", database, replace(s3, url=store.urls["server"])) as shared,
        ):
            os.environ.update({**shared, "AWS_ENDPOINT_URL": s3.url})
            drill = Drill(folder, shared, store, options)
            try:
                drill.run(options.cut_off)
            finally:
                for host in (drill.a, drill.b):
                    host.send(signal.SIGKILL)
            with_secret = leaks(folder, [database.password, s3.secret])
            drill.expect(not with_secret, f"secrets in {with_secret}")
    except (StoreMissingError, ConfigError) as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(drill.figures, indent=2))
    for line in drill.wrong:
        print(f"FAILED: {line}")
    return 1 if drill.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
