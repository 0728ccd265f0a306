"""A project in a folder of its own on which `benchmarks/faults.py` inflicts faults.

It holds the code, tiny settings and a registry whose champion is a given model, so that a run
teaches nothing. `check` says what must hold after any fault and the run that followed it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from flows.services import answers, free_port

ROOT = Path(__file__).resolve().parent.parent
CODE = (".dvc", ".dvcignore", "agent", "env", "flows", "mlflow", "profiles", "rewards", "tasks")
FILES = ("constraints.txt", "dvc.yaml", "params.yaml", "prefect.toml", "prefect.yaml")
TINY = [
    "warmstart.kind=champion",
    "prepare.synthetic.groups={train: 12, validation: 4, test: 10}",
    "validate.min_rows=6",
    "audit.problems=6",
    "gate.episodes=4",
    "gate.baseline_episodes=20",
    "train.steps=2",
    "train.problems_per_step=4",
    "train.group_size=4",
    "train.save_every=1",
    "train.table_every=1",
    "export.prompts=4",
    "evaluate.episodes=20",
    "evaluate.bootstrap=200",
    "evaluate.latency_episodes=2",
    "promote.problems=200",
    "tracking.system_s=0",
]
DONE = re.compile(r"^([✓=✗!]) (\w+) \d+ s$", re.M)
BEGUN = re.compile(r"^\d+/\d+ (\w+)  ", re.M)
LONGEST_S = 1800.0
_REGISTER = """
from pathlib import Path
from flows.surroundings import settle; settle(1)
from tasks import config, lineage, register, tracking
params = config.load_resolved()
with tracking.stage_run("register", params) as run:
    tags = {"weights_hash": register.weights_hash(register.MERGED), **lineage.tags(params)}
    number = register.log_version("rlm", params, run, tags)
    run.client.set_registered_model_alias("rlm", "champion", number)
"""
_REGISTRY = """
import json
from tasks import register, tracking
store = tracking.client(tracking.tracking_uri())
versions = store.search_model_versions("name = 'rlm'")
for version in versions:
    register.download(version)  # its weights are those that were registered
runs = store.search_runs([tracking.experiment_id("rlm")], "attributes.status = 'RUNNING'")
print(json.dumps({"running": len(runs)}))
"""


@dataclass
class Ended:
    """A run of the chain that is over."""

    code: int
    told: str

    @property
    def line(self) -> str:
        """What it said last, less progress: the message that a user reads."""
        told = r"^(?:\w+Error: |Gated|Interrupted|Prefect's server went|promoted: |kept: ).*"
        errors = re.findall(told, self.told, re.M)
        if errors:
            return str(errors[-1])
        lines = [line for line in self.told.strip().splitlines() if line.strip()]
        return "killed, so it says nothing" if self.code < 0 else lines[-1] if lines else ""

    def stages(self, marks: str) -> list[str]:
        """Stages with one of the marks: `✓` done, `=` kept, `✗` failed."""
        return [name for mark, name in DONE.findall(self.told) if mark in marks]

    @property
    def summary(self) -> str:
        """What it kept and what it made."""
        kept, made = self.stages("="), self.stages("✓")
        return f"{len(kept)} stages kept, {', '.join(made)} made" if made else "nothing to do"


@dataclass
class Chain:
    """A run of the chain in flight."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def told(self) -> str:
        """Its output so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def stage(self) -> str:
        """The stage that it began last."""
        begun = BEGUN.findall(self.told)
        return str(begun[-1]) if begun else "before the first stage"

    def wait_for(self, text: str) -> bool:
        """Wait until it says something; False when it ended before."""
        deadline = time.monotonic() + LONGEST_S
        while text not in self.told and time.monotonic() < deadline:
            if self.process.poll() is not None:
                return text in self.told
            time.sleep(0.05)
        return True

    def end(self) -> Ended:
        """Wait for its end."""
        return Ended(self.process.wait(timeout=LONGEST_S), self.told)


@dataclass
class Project:
    """The folder, and the environment in which its commands run."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    servers: set[int] = field(default_factory=set)
    """Process groups that the drill itself started."""

    @classmethod
    def make(cls, folder: Path, base: Path) -> Project:
        """Copy the code, and register `base` as the champion; kept if it is there already."""
        project = cls(folder)
        if (folder / "made").exists():
            return project
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in CODE:
            source, target = ROOT / name, folder / name
            if source.is_dir():
                skipped = shutil.ignore_patterns("__pycache__", "cache", "tmp", "config.local")
                shutil.copytree(source, target, ignore=skipped)
            else:
                shutil.copy(source, target)
        for name in FILES:
            shutil.copy(ROOT / name, folder)
        (folder / ".dvc/config.local").write_text("[core]\n    no_scm = true\n")
        shutil.copytree(base, folder / "models/merged")
        project.command("flows.pipeline", "resolve", *_set(TINY))
        project.python(_REGISTER)
        shutil.rmtree(folder / "models/merged")
        (folder / "made").touch()
        return project

    @property
    def settings(self) -> dict[str, str]:
        """Environment variables of a command."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RLM_", "PREFECT_"))}
        return kept | {
            "PYTHONPATH": str(self.folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "PREFECT_HOME": str(self.folder / ".prefect"),
            "PREFECT_API_URL": "http://127.0.0.1:9/api",  # nobody: each run starts its own server
            **self.environment,
        }

    @contextmanager
    def using(self, variable: str, value: str) -> Iterator[None]:
        """An environment variable of every command that starts meanwhile."""
        self.environment[variable] = value
        try:
            yield
        finally:
            del self.environment[variable]

    def start(self, *overrides: str, name: str = "run") -> Chain:
        """Start the chain; its output goes to a log in the folder."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [
                    *[sys.executable, "-u", "-m", "flows.pipeline", "run"],
                    *_set([*TINY, *overrides]),
                ],
                cwd=self.folder,
                env=self.settings,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Chain(process, log)

    def command(self, module: str, *arguments: str) -> str:
        """Run a command of the project to its end; returns what it said."""
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=self.folder,
            env=self.settings,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def python(self, code: str) -> str:
        """Run a piece of code in the project; returns what it printed."""
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env=self.settings,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{self.folder}: {done.stderr[-2000:]}")
        return done.stdout

    @contextmanager
    def server(self, *command: str, health: str) -> Iterator[subprocess.Popen[bytes]]:
        """A server beside the runs, in a process group of its own."""
        with (self.folder / "server.log").open("ab") as stream:
            process = _serve(command, self, stream)
        self.servers.add(process.pid)
        deadline = time.monotonic() + 180
        try:
            while not answers(health) and time.monotonic() < deadline:
                time.sleep(0.3)
            yield process
        finally:
            kill_group(process)
            self.servers.discard(process.pid)

    def check(self, done: Collection[str], after: Ended) -> list[str]:
        """What does not hold after faults and the run that followed; empty when all does."""
        wrong = self.made_again(done, after) + self.half_promoted(over=True)
        if after.code:
            wrong.append(f"the next run ended with {after.code}: {after.line}")
        if running := json.loads(self.python(_REGISTRY).strip().splitlines()[-1])["running"]:
            wrong.append(f"{running} runs of MLflow are still RUNNING")
        if left := self.processes(lambda line: True):
            wrong.append(f"{len(left)} processes are left: {left}")
        return wrong

    def made_again(self, done: Collection[str], after: Ended) -> list[str]:
        """A sentence, if stages that were said to be done were made once more."""
        again = [name for name in after.stages("✓") if name in done and name in BY_DVC]
        return [f"done before the fault and made again: {', '.join(again)}"] if again else []

    def half_promoted(self, over: bool = False) -> list[str]:
        """A sentence, if the champion is neither the first version nor one that won.

        Args:
            over: no run is about to finish what was begun: who won last has to be champion.
        """
        with closing(sqlite3.connect(f"file:{self.folder}/mlflow.db?mode=ro", uri=True)) as store:
            (champion,) = store.execute(
                "SELECT version FROM registered_model_aliases WHERE alias = 'champion'"
            ).fetchone()
            won = [1] + [
                version
                for (version,) in store.execute(
                    "SELECT version FROM model_version_tags"
                    " WHERE key = 'promotion.verdict' AND value = 'promoted'"
                )
            ]
        if champion not in won:
            return [f"version {champion} is champion and was never promoted"]
        if over and champion != max(won):
            return [f"version {max(won)} was promoted and {champion} is champion"]
        return []

    def processes(self, wanted: Callable[[str], bool]) -> list[int]:
        """Processes that work in this folder, by their command line."""
        import psutil

        found = []
        for process in psutil.process_iter():
            try:
                line = " ".join(process.cmdline())
                here = process.environ().get("PYTHONPATH", "").split(":")[0] == str(self.folder)
                here = here or str(self.folder) in line
                ours = process.pid == os.getpid() or os.getpgid(process.pid) in self.servers
                if here and not ours and wanted(line):
                    found.append(process.pid)
            except (psutil.Error, ProcessLookupError):
                continue
        return found


BY_DVC = ("prepare", "validate", "audit", "warmstart", "gate", "train", "export", "evaluate")


def mlflow_server(project: Project, port: int) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """An MLflow server over the project's own store."""
    command = ["mlflow", "server", "--workers", "1", "--host", "127.0.0.1", "--port", str(port)]
    store = ["--backend-store-uri", "sqlite:///mlflow.db", "--artifacts-destination", "mlartifacts"]
    return project.server(*command, *store, health=f"http://127.0.0.1:{port}/health")


@contextmanager
def prefect_server(project: Project) -> Iterator[subprocess.Popen[bytes]]:
    """A Prefect server that schedules, to which the project's commands speak meanwhile."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    command = ["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (
        project.using("PREFECT_API_URL", url),
        project.server(*command, health=f"{url}/health") as server,
    ):
        yield server


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a server with all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _serve(
    command: tuple[str, ...], project: Project, stream: IO[bytes]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(Path(sys.executable).parent / command[0]), *command[1:]],
        cwd=project.folder,
        env=project.settings | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdin=subprocess.DEVNULL,
        stdout=stream,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _set(overrides: list[str]) -> list[str]:
    return [word for text in overrides for word in ("--set", text)]
