"""SIGKILL on each process of the system at random moments; `benchmarks/faults.py` counts them.

A run of one data set is killed again and again: what goes on after a kill is the run that the next
kill hits. The last run is left alone. After every kill the registry is asked, in the store's own
tables, whether anything is half promoted.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from benchmarks.fault_project import (
    BEGUN,
    TINY,
    Chain,
    Ended,
    Project,
    kill_group,
    mlflow_server,
    prefect_server,
)
from flows.lock import PRINTED
from flows.services import free_port

Row = dict[str, Any]
Attempt = Callable[[list[str], float], tuple[Ended, str | None]]
"""Starts a run with these settings and kills after so many seconds: how it ended, and the stage
that was hit; None if the run was over before."""

SPAN_S = 45.0
"""A kill falls within so many seconds of a start. A run goes on where the killed one stopped, so
kills reach the late stages too."""

PROCESSES: dict[str, Callable[[str], bool]] = {
    "chain": lambda line: "flows.pipeline run" in line,
    "stage": lambda line: "flows.pipeline " in line and "flows.pipeline run" not in line,
    "environment server": lambda line: "env.server.app" in line,
    "sandbox zygote": lambda line: "inside.zygote" in line,
    "Prefect server": lambda line: "prefect.server" in line or "prefect server start" in line,
}
"""Processes that a run starts itself, by a piece of their command line."""
TARGETS = [*PROCESSES, "MLflow server", "Prefect worker"]
OUTLIVED = ("Prefect server", "Prefect worker")
"""A run goes on to its end without them, so each one evaluates anew: else the next has nothing to
do."""
POOL = ("work-pool", "create", "local", "--type", "process", "--overwrite")

_ASK = """
from prefect.deployments import run_deployment
run = run_deployment("rlm/full", parameters={{"overrides": {overrides!r}}}, timeout=0)
print(run.id)
"""
_AWAIT = """
import time
from uuid import UUID
from prefect import get_client
with get_client(sync_client=True) as client:
    for _ in range(1800):
        state = client.read_flow_run(UUID("{run}")).state
        if state.is_final():
            break
        time.sleep(1)
    print(f"the flow run ended {{state.name}}: {{state.message}}")
"""


def kill_again_and_again(project: Project, target: str, number: int, kills: int) -> Row:
    """Up to `kills` SIGKILLs on one target, all in runs of the same data set.

    Args:
        project: where.
        target: one of `TARGETS`.
        number: of the data set and of the moments.
        kills: the most; fewer when a run ends before its kill.

    Returns:
        `kills` that hit, the stages they hit, what was said last, and what did not hold.
    """
    rng = random.Random(f"{target}/{number}")
    settings = [f"prepare.synthetic.seed={1000 * (2 + TARGETS.index(target)) + number}"]
    done: set[str] = set()
    hit: list[str] = []
    wrong: list[str] = []
    ended = Ended(0, "")
    with surroundings(project, target) as attempt:
        while len(hit) < kills:
            anew = [f"evaluate.seed={1 + len(hit)}"] if target in OUTLIVED else []
            ended, stage = attempt([*settings, *anew], rng.uniform(0, SPAN_S))
            wrong += [f"kill {len(hit)}: {text}" for text in project.made_again(done, ended)]
            done |= set(ended.stages("✓=")) - ({"evaluate"} if target in OUTLIVED else set())
            if stage is None:
                break
            hit.append(stage)
            wrong += [f"kill {len(hit)}: {text}" for text in project.half_promoted()]
            if target == "Prefect worker" and ended.code:
                wrong.append(f"kill {len(hit)}: its run did not outlive it: {ended.line}")
    after = project.start(*settings).end()
    return {
        "kills": len(hit),
        "at": ", ".join(f"{stage} {hit.count(stage)}" for stage in dict.fromkeys(hit)),
        "said": ended.line,
        "next": after.summary,
        "wrong": wrong + project.check(done, after),
    }


def surroundings(project: Project, target: str) -> AbstractContextManager[Attempt]:
    """What a run needs beside it so that the target is there."""
    if target == "MLflow server":
        return _beside_mlflow(project)
    if target == "Prefect worker":
        return _by_a_worker(project)
    return _alone(project, PROCESSES[target])


@contextmanager
def _alone(project: Project, wanted: Callable[[str], bool]) -> Iterator[Attempt]:
    def attempt(settings: list[str], after_s: float) -> tuple[Ended, str | None]:
        chain = project.start(*settings)
        _wait(chain, after_s)
        victims: list[int] = []
        while not victims and chain.process.poll() is None:
            victims = project.processes(wanted)
            time.sleep(0.02)
        stage = chain.stage
        for victim in victims[:1]:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        return chain.end(), stage if victims else None

    yield attempt


@contextmanager
def _beside_mlflow(project: Project) -> Iterator[Attempt]:
    port = free_port()

    def attempt(settings: list[str], after_s: float) -> tuple[Ended, str | None]:
        with mlflow_server(project, port) as server:
            chain = project.start(*settings)
            _wait(chain, after_s)
            stage = chain.stage if chain.process.poll() is None else None
            kill_group(server)
            return chain.end(), stage

    with project.using("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}"):
        yield attempt


@contextmanager
def _by_a_worker(project: Project) -> Iterator[Attempt]:
    """Runs of the deployment `rlm/full`, beside whose worker another one is started at once."""

    def attempt(settings: list[str], after_s: float) -> tuple[Ended, str | None]:
        with worker(project) as first:
            run = ask_for_a_run(project, settings)
            time.sleep(after_s)
            begun = BEGUN.findall(printed(project))
            os.kill(first.pid, signal.SIGKILL)
            with worker(project):
                said = end_of(project, run)
        code = 0 if "ended Completed" in said else 1
        return Ended(code, said), begun[-1] if begun else "before the first stage"

    with deployed(project):
        yield attempt


@contextmanager
def deployed(project: Project) -> Iterator[None]:
    """A Prefect server that schedules, with the deployments and automations of `make up`."""
    with prefect_server(project):
        project.command("prefect", *POOL)
        project.command("prefect", "--no-prompt", "deploy", "--all")
        project.python("from flows import automations; automations.apply()")
        yield


def worker(project: Project) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A worker of the pool; what it has started may outlive it."""
    health = f"{project.environment['PREFECT_API_URL']}/health"
    return project.server("prefect", "worker", "start", "--pool", "local", health=health)


def ask_for_a_run(project: Project, settings: list[str]) -> str:
    """Ask for `rlm/full` with these settings; returns the id of the flow run."""
    (project.folder / PRINTED).unlink(missing_ok=True)
    return project.python(_ASK.format(overrides=[*TINY, *settings])).strip().splitlines()[-1]


def printed(project: Project) -> str:
    """What the worker's run has printed so far."""
    log = project.folder / PRINTED
    return log.read_text(encoding="utf-8") if log.exists() else ""


def end_of(project: Project, run: str) -> str:
    """Wait for a flow run's end; returns what Prefect says of it, in a line."""
    return project.python(_AWAIT.format(run=run)).strip().splitlines()[-1]


def _wait(chain: Chain, seconds: float) -> None:
    """Until the moment, or the run's end."""
    moment = time.monotonic() + seconds
    while time.monotonic() < moment and chain.process.poll() is None:
        time.sleep(0.05)
