"""A copy of the project in its own folder, on which `benchmarks.faults` inflicts faults.

It has the code, tiny settings and a registry whose champion is a given model, so that a run does
not teach a base. `check` verifies the folder after a fault and the run that followed it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from flows.services.processes import answers, free_port

ROOT = Path(__file__).resolve().parents[2]
CODE = (".dvc", "agent", "env", "flows", "mlflow", "profiles", "rewards", "tasks")
FILES = (".dvcignore", "constraints.txt", "dvc.yaml", "params.yaml", "prefect.toml", "prefect.yaml")
TINY = [
    "warmstart.kind=champion",
    "prepare.synthetic.collections={train: 12, validation: 4, test: 10}",
    "validate.min_rows=6",
    "audit.problems=6",
    "gate.episodes=4",
    "gate.baseline_episodes=20",
    "train.steps=2",
    "train.processes=1",
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
STORE = """
from tasks.registry import versions
from tasks.tracking import runs
store = runs.client(runs.tracking_uri())
"""
"""Code that opens the project's registry."""
_REGISTRY = f"""{STORE}
for version in store.search_model_versions("name = 'rlm'"):
    versions.download(version)  # checks the hash of its weights
print(len(store.search_runs([runs.experiment_id("rlm")], "attributes.status = 'RUNNING'")))
"""


@dataclass
class Ended:
    """A run of the chain that has ended."""

    code: int
    output: str

    @property
    def line(self) -> str:
        """The last message to the user, without progress."""
        messages = r"^(?:\w+Error: |Gated|Interrupted|Prefect's server went|promoted: |kept: ).*"
        errors = re.findall(messages, self.output, re.M)
        if errors:
            return str(errors[-1])
        lines = [line for line in self.output.strip().splitlines() if line.strip()]
        return "killed, so it says nothing" if self.code < 0 else lines[-1] if lines else ""

    def stages(self, marks: str) -> list[str]:
        """Stages with one of the marks: `✓` done, `=` kept, `✗` failed."""
        return [name for mark, name in DONE.findall(self.output) if mark in marks]

    @property
    def summary(self) -> str:
        """Number of kept stages, and names of those that ran."""
        kept, made = self.stages("="), self.stages("✓")
        return f"{len(kept)} stages kept, {', '.join(made)} made" if made else "nothing to do"


@dataclass
class ChainProcess:
    """A running chain."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def output(self) -> str:
        """Output so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def stage(self) -> str:
        """Name of the last stage that began."""
        begun = BEGUN.findall(self.output)
        return str(begun[-1]) if begun else "before the first stage"

    def wait_for(self, text: str) -> bool:
        """Wait until the output contains a text; return False if the run ends before."""
        deadline = time.monotonic() + LONGEST_S
        while text not in self.output and time.monotonic() < deadline:
            if self.process.poll() is not None:
                return text in self.output
            time.sleep(0.05)
        return True

    def end(self) -> Ended:
        """Wait for the end."""
        return Ended(self.process.wait(timeout=LONGEST_S), self.output)


@dataclass
class Project:
    """The folder, and the environment variables of its commands."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    servers: set[int] = field(default_factory=set)
    """Process groups that the drill started."""

    @classmethod
    def make(cls, folder: Path, base: Path) -> Project:
        """Copy the code and register `base` as the champion, unless that is done already."""
        project = cls(folder)
        if (folder / "made").exists():
            return project
        shutil.rmtree(folder, ignore_errors=True)
        copy_code(folder)
        shutil.copytree(base, folder / "models/merged")
        project.command("-m", "flows.pipeline", "resolve", *options_of(TINY))
        project.command("-c", REGISTER)
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

    def start(self, *overrides: str, name: str = "run") -> ChainProcess:
        """Start the chain; its output goes to a log in the folder."""
        log = self.folder / f"{name}.log"
        command = [sys.executable, "-u", "-m", "flows.pipeline", "run"]
        process = launch(
            [*command, *options_of([*TINY, *overrides])], self.folder, self.settings, log
        )
        return ChainProcess(process, log)

    def command(self, *arguments: str) -> str:
        """Run Python in the project with these arguments; returns what it printed.

        Raises:
            RuntimeError: it failed.
        """
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.settings,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{self.folder}: {done.stderr[-2000:]}")
        return done.stdout

    def last_line(self, code: str) -> str:
        """Run Python code in the project; return the last line of its output."""
        return self.command("-c", code).strip().splitlines()[-1]

    @contextmanager
    def server(self, *command: str, health: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a server beside the runs, in its own process group."""
        words = [str(Path(sys.executable).parent / command[0]), *command[1:]]
        environment = self.settings | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        process = launch(words, self.folder, environment, self.folder / "server.log", "ab")
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
        """Failed checks after faults and the run that followed; empty if all hold."""
        wrong = self.made_again(done, after) + self.half_promoted(over=True)
        if after.code:
            wrong.append(f"the next run ended with {after.code}: {after.line}")
        if running := int(self.last_line(_REGISTRY)):
            wrong.append(f"{running} runs of MLflow are still RUNNING")
        if left := self.processes():
            wrong.append(f"{len(left)} processes are left: {left}")
        return wrong

    def made_again(self, done: Collection[str], after: Ended) -> list[str]:
        """A message if stages reported as done ran again."""
        again = [name for name in after.stages("✓") if name in done and name in BY_DVC]
        return [f"done before the fault and made again: {', '.join(again)}"] if again else []

    def half_promoted(self, over: bool = False) -> list[str]:
        """A message if the champion is neither the first version nor one that won.

        Args:
            over: whether all runs have ended, so that the last winner must be champion.
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

    def processes(self, wanted: Callable[[str], bool] = bool) -> list[int]:
        """Pids of processes that work in this folder and whose command line is `wanted`."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                line = " ".join(process.cmdline())
                here = process.environ().get("PYTHONPATH", "").split(":")[0] == str(self.folder)
                here = here or str(self.folder) in line
                ours = process.pid == os.getpid() or os.getpgid(process.pid) in self.servers
                if here and not ours and wanted(line):
                    found.append(process.pid)
        return found

    def kill_all(self) -> None:
        """SIGKILL every process that works in this folder."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


BY_DVC = (
    *("prepare", "validate", "audit", "zeroshot", "warmstart"),
    *("gate", "train", "export", "evaluate"),
)


def mlflow_server(project: Project, port: int) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run an MLflow server on the project's own store."""
    command = ["mlflow", "server", "--workers", "1", "--host", "127.0.0.1", "--port", str(port)]
    store = ["--backend-store-uri", "sqlite:///mlflow.db", "--artifacts-destination", "mlartifacts"]
    return project.server(*command, *store, health=f"http://127.0.0.1:{port}/health")


@contextmanager
def prefect_server(project: Project) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Prefect server that schedules; the project's commands use it within the block."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    command = ["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (
        project.using("PREFECT_API_URL", url),
        project.server(*command, health=f"{url}/health") as server,
    ):
        yield server


def copy_code(folder: Path) -> None:
    """Copy the code into a new folder without git."""
    folder.mkdir(parents=True)
    skipped = shutil.ignore_patterns("__pycache__", "cache", "tmp", "config.local")
    for name in CODE:
        shutil.copytree(ROOT / name, folder / name, ignore=skipped)
    for name in FILES:
        shutil.copy(ROOT / name, folder)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a server with all its processes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def launch(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    log: Path,
    mode: Literal["ab", "wb"] = "wb",
) -> subprocess.Popen[bytes]:
    """Start a command in a folder and in its own process group, with its output in a log."""
    with log.open(mode) as stream:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def options_of(overrides: list[str]) -> list[str]:
    """Options of `rlm run` that set these settings."""
    return [word for text in overrides for word in ("--set", text)]
