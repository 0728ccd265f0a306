"""Kill runs of the chain, resume them, and compare what results with an undisturbed run.

    python -m benchmarks.faults --base models/base [--arms chain hosts] [--seed 0] [--keep DIR]

All runs have the same tiny settings; `--base`, a taught model, is their champion, so no run teaches
one. In the arm `chain`, SIGKILL hits a run at moments of the chain and of its training, sometimes
the stage alone, and the same command goes on each time. In the arm `hosts`, two folders share an S3
server (`make setup-cluster`), Prefect and MLflow; the first one is killed in its training, the
other one takes over, and the first one comes back late. In `deterministic` mode the steps of the
training and the final weights must then equal those of the undisturbed run, to the last bit. No
stage that was done may run again, and no process or open MLflow run may remain. The exit code is 1
if a check failed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

from env import variables
from flows.services.processes import free_port

ROOT = Path(__file__).resolve().parents[1]
CODE = (".dvc", "agent", "env", "flows", "mlflow", "profiles", "rewards", "tasks")
FILES = (".dvcignore", "constraints.txt", "dvc.yaml", "params.yaml", "prefect.toml", "prefect.yaml")
TINY = [
    *("threads=1", "env.deterministic=true", "warmstart.kind=champion", "tracking.system_s=0"),
    "prepare.synthetic.collections={train: 12, validation: 4, test: 10}",
    *("validate.min_rows=6", "audit.problems=6", "gate.episodes=4", "gate.baseline_episodes=20"),
    *("train.steps=8", "train.processes=1", "train.problems_per_step=4", "train.group_size=4"),
    *("train.save_every=1", "train.push_every=1", "train.table_every=1", "export.prompts=4"),
    *("evaluate.episodes=20", "evaluate.bootstrap=200", "evaluate.latency_episodes=2"),
    "promote.problems=200",
]
SETTINGS = [word for text in TINY for word in ("--set", text)]
MOMENTS = (
    *(r"\d+/\d+ validate ", r"\d+/\d+ gate ", r"\d+/\d+ train "),
    *("train: step 2/", "train: step [5-8]/"),
    *(r"\d+/\d+ export ", r"\d+/\d+ evaluate ", r"\d+/\d+ promote "),
)
"""Patterns of the lines after which a run is killed, in order."""
BY_DVC = (
    *("prepare", "validate", "audit", "zeroshot", "warmstart"),
    *("gate", "train", "export", "evaluate"),
)
"""Stages that run once; the others look each time whether something is left to do."""
LATER_S = 1.0
"""Longest time from a moment to its kill."""
NOBODY = "http://127.0.0.1:9/api"
"""Without a server at this address, each run starts its own."""
BUCKET = "rlm"
LOG = "run.log"
REPORT, MERGED = Path("reports/train.parquet"), Path("models/merged")
CLOCKS = ("_seconds", "tokens_per_second")
REGISTER = """
from flows.runtime import settle; settle(1)
from tasks import config, register
from tasks.registry import versions
from tasks.tracking import lineage, runs
params = config.load_resolved()
with runs.stage_run("register", params) as run:
    tags = {"weights_hash": versions.weights_hash(versions.MERGED), **lineage.tags(params)}
    number = register.log_version("rlm", params, run, tags)
    run.client.set_registered_model_alias("rlm", "champion", number)
"""
REGISTRY = """
import json
from tasks.registry import versions
from tasks.tracking import runs
store = runs.client(runs.tracking_uri())
found = store.search_model_versions("name = 'rlm'")
for version in found:
    versions.download(version)  # checks the hash of its weights
won = [int(v.version) for v in found if v.tags.get("promotion.verdict") == "promoted"]
running = store.search_runs([runs.experiment_id("rlm")], "attributes.status = 'RUNNING'")
champion = int(versions.by_alias("rlm", "champion").version)
print(json.dumps([len(found), champion, max([1, *won]), len(running)]))
"""
RECORD = """
import json
from tasks import holder, remote
print(json.dumps(remote.store().read(holder.RECORD)[0] or {}))
"""


@dataclass
class Host:
    """A folder with the project's code, and the variables of its processes."""

    folder: Path
    variables: dict[str, str]

    @classmethod
    def make(cls, folder: Path, variables: Mapping[str, str]) -> Host:
        """Copy the code into a new folder; nothing in it belongs to another host."""
        folder.mkdir(parents=True)
        skipped = shutil.ignore_patterns("__pycache__", "cache", "tmp", "config.local")
        for name in CODE:
            shutil.copytree(ROOT / name, folder / name, ignore=skipped)
        for name in FILES:
            shutil.copy(ROOT / name, folder)
        return cls(folder, dict(variables))

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a process of this host."""
        foreign = ("RLM_", "PREFECT_", "MLFLOW_", "AWS_", "DVC_")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        return kept | {
            "PYTHONPATH": str(self.folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PREFECT_HOME": str(self.folder / ".prefect"),
            "DVC_SITE_CACHE_DIR": str(self.folder / ".dvc-site"),
            "OMP_NUM_THREADS": "1",
            **self.variables,
        }

    def register(self, base: Path) -> None:
        """Make `base` the champion."""
        shutil.copytree(base, self.folder / MERGED)
        self.run("-m", "flows.pipeline", "resolve", *SETTINGS).check_returncode()
        self.run("-c", REGISTER).check_returncode()
        shutil.rmtree(self.folder / MERGED)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run Python on this host; returns when it has ended."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment | variables,
            capture_output=True,
            text=True,
        )

    def ask(self, code: str) -> Any:
        """Value of the last line, as JSON, that Python code prints on this host.

        Raises:
            RuntimeError: it failed.
        """
        done = self.run("-c", code)
        if done.returncode:
            raise RuntimeError(f"{self.folder}: {done.stderr[-2000:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def start(self) -> subprocess.Popen[bytes]:
        """Start the chain."""
        with (self.folder / LOG).open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-u", "-m", "flows.pipeline", "run", *SETTINGS],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """Output of the last run so far."""
        return (self.folder / LOG).read_text(encoding="utf-8", errors="replace")

    def stages(self, marks: str) -> set[str]:
        """Stages of the last run with one of the marks: `✓` done, `=` kept."""
        found = re.findall(r"^([✓=]) (\w+) \d+ s$", self.output, re.M)
        return {name for mark, name in found if mark in marks}

    def processes(self, wanted: str = "") -> list[psutil.Process]:
        """Living processes of this host whose command line contains a text."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                here = str(self.folder) in process.environ().get("PYTHONPATH", "").split(":")
                alive = process.status() != psutil.STATUS_ZOMBIE
                if here and alive and wanted in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def kill(self) -> None:
        """Kill all processes of this host until none is left."""
        while found := self.processes():
            for process in found:
                with suppress(psutil.Error):
                    process.kill()
            time.sleep(0.2)


def wait_for(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: it did not hold in time.
    """
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > limit_s:
            raise TimeoutError(f"not within {limit_s:g} s: {what}")
        time.sleep(0.2)


def finish(host: Host, done: set[str]) -> list[str]:
    """Run the chain to its end; returns failed checks. `done` was done by earlier runs."""
    code, wrong = host.start().wait(), []
    if code:
        wrong.append(f"the run ended with {code}: {host.output[-300:]}")
    if again := host.stages("✓") & done & set(BY_DVC):
        wrong.append(f"done before and made again: {', '.join(sorted(again))}")
    versions, champion, winner, running = host.ask(REGISTRY)
    if versions != 2 or champion != winner:
        wrong.append(f"{versions} versions, champion {champion}, last winner {winner}")
    if running:
        wrong.append(f"{running} MLflow runs are open")
    if left := host.processes("flows.pipeline"):
        wrong.append(f"{len(left)} processes are left")
    return wrong


def compare(whole: Host, other: Host) -> list[str]:
    """Differences between the training steps and the weights of two hosts."""
    one, two = (pd.read_parquet(host.folder / REPORT) for host in (whole, other))
    names = [name for name in one if not name.endswith(CLOCKS)]
    wrong = [f"{name} differs" for name in names if not one[name].equals(two.get(name))]
    files = [sorted((host.folder / MERGED).glob("*.safetensors")) for host in (whole, other)]
    if [f.read_bytes() for f in files[0]] != [f.read_bytes() for f in files[1]]:
        wrong.append("the weights differ")
    return wrong


def kill_chain(folder: Path, base: Path, rng: random.Random) -> tuple[Host, list[str]]:
    """Kill run after run, each at the next moment; returns the host, and what failed."""
    host = Host.make(folder, {"PREFECT_API_URL": NOBODY})
    host.register(base)
    done: set[str] = set()
    for pattern in MOMENTS:
        run, line = host.start(), re.compile(f"^{pattern}", re.M)
        while run.poll() is None and not line.search(host.output):
            time.sleep(0.1)
        if run.poll() is not None:
            return host, [f"no run reached `{pattern}`: {host.output[-300:]}"]
        time.sleep(rng.uniform(0, LATER_S))
        victims = host.processes("flows.pipeline")
        if rng.random() < 0.5:  # the stage alone; else the run, and with it whatever it started
            victims = [one for one in victims if one.pid != run.pid] or victims
        for victim in victims:
            victim.kill()
        print(f"killed at `{pattern}`: the run ended with {run.wait()}", flush=True)
        done |= host.stages("✓=")
    return host, finish(host, done)


def lose_host(folder: Path, base: Path, rng: random.Random) -> tuple[Host, list[str]]:
    """Kill all processes of host A in its training; returns host B, which takes over."""
    with ExitStack() as stack:
        shared = stack.enter_context(servers(folder / "server", stack.enter_context(s3())))
        a, b = (Host.make(folder / name, shared) for name in "ab")
        stack.callback(a.kill)
        stack.callback(b.kill)
        a.register(base)
        a.start()
        wait_for(lambda: bool(a.ask(RECORD).get("checkpoint")), 1800, "a pushed checkpoint")
        time.sleep(rng.uniform(0, LATER_S))
        token = str(a.ask(RECORD)["token"])
        a.kill()
        wrong = finish(b, a.stages("✓="))
        for text in ("Taking over", "train: resuming after"):
            if text not in b.output:
                wrong.append(f"B never said `{text}`")
        late = a.run("-m", "flows.pipeline", "push", **{variables.FENCE: token})
        if late.returncode != 1 or "another run took over" not in late.stderr:
            wrong.append(f"A's late push ended with {late.returncode}: {late.stderr[-200:]}")
        return b, wrong


ARMS = {"chain": kill_chain, "hosts": lose_host}


@contextmanager
def s3() -> Iterator[dict[str, str]]:
    """An S3 server with a bucket, in this process; yields the variables of its clients."""
    try:
        import boto3
        from moto.server import ThreadedMotoServer
    except ImportError:
        raise SystemExit("moto is missing. Install: make setup-cluster") from None
    logging.getLogger("werkzeug").disabled = True  # it prints each request
    server = ThreadedMotoServer("127.0.0.1", free_port(), verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    key = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
    session = boto3.session.Session("any", "any", region_name="us-east-1")
    session.client("s3", endpoint_url=address).create_bucket(Bucket=BUCKET)
    yield {**key, "AWS_ENDPOINT_URL": address, "AWS_DEFAULT_REGION": "us-east-1"}
    server.stop()


@contextmanager
def servers(folder: Path, store: Mapping[str, str], **stores: str) -> Iterator[dict[str, str]]:
    """Prefect's and MLflow's servers, by `flows.services up`; yields the hosts' variables.

    Args:
        folder: new folder of the servers.
        store: variables of the S3 server's clients.
        stores: variables with the servers' databases; SQLite without them.
    """
    prefect, mlflow = free_port(), free_port()
    shared = {
        **store,
        variables.REMOTE: f"s3://{BUCKET}/hosts",
        "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{mlflow}",
        "PREFECT_API_URL": f"http://127.0.0.1:{prefect}/api",
    }
    own = {
        variables.PREFECT_PORT: str(prefect),
        variables.MLFLOW_PORT: str(mlflow),
        "MLFLOW_ARTIFACTS_DESTINATION": f"s3://{BUCKET}/mlflow",
        **stores,
    }
    host = Host.make(folder, shared | own)
    try:
        done = host.run("-m", "flows.services", "up")
        if done.returncode:
            raise RuntimeError(f"up failed: {done.stdout[-1000:]}{done.stderr[-3000:]}")
        yield shared
    finally:
        host.run("-m", "flows.services", "down")
        host.kill()


def main() -> int:
    """Play the arms, and print what failed; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", type=Path, default=Path("models/base"), help="a taught model")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=[*ARMS])
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments, not of the runs")
    parser.add_argument("--keep", type=Path, help="new folder for the hosts, which stays")
    options = parser.parse_args()
    if not (options.base / "config.json").is_file():
        parser.error(f"{options.base} holds no model. Run the stage warmstart, or name another.")
    base, wrong = options.base.resolve(), {}
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        whole = Host.make(folder.resolve() / "whole", {"PREFECT_API_URL": NOBODY})
        whole.register(base)
        wrong["undisturbed"] = finish(whole, set())
        for arm in options.arms:
            rng = random.Random(options.seed)
            host, failed = ARMS[arm](folder.resolve() / arm, base, rng)
            wrong[arm] = failed or compare(whole, host)
    for arm, lines in wrong.items():
        print(f"{arm}: {'; '.join(lines) or 'held'}")
    return int(any(wrong.values()))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
