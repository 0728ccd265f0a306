"""SIGKILL each process of the system at random moments, for `benchmarks.faults`.

Runs of one data set are killed repeatedly: each kill hits the run that resumes after the last one.
The final run is left undisturbed. After every kill, the store's own tables show whether a
promotion is incomplete.
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

from benchmarks.faults.project import (
    BEGUN,
    TINY,
    ChainProcess,
    Ended,
    Project,
    kill_group,
    mlflow_server,
    prefect_server,
)
from flows.runtime import PRINTED
from flows.services.processes import free_port

KillRow = dict[str, Any]
Attempt = Callable[[list[str], float], tuple[Ended, str | None]]
"""Starts a run with these settings and kills after these seconds. Returns its end, and the stage
that was hit or None if the run had ended before."""

SPAN_S = 45.0
"""Longest time from a start to its kill, in seconds. A run resumes where the killed one stopped, so
kills reach the late stages too."""

PROCESSES: dict[str, Callable[[str], bool]] = {
    "chain": lambda line: "flows.pipeline run" in line,
    "stage": lambda line: "flows.pipeline " in line and "flows.pipeline run" not in line,
    "environment server": lambda line: "env.server.app" in line,
    "sandbox zygote": lambda line: "inside.zygote" in line,
    "Prefect server": lambda line: "prefect.server" in line or "prefect server start" in line,
}
"""Predicates of the command lines of the processes that a run starts itself."""
TARGETS = [*PROCESSES, "MLflow server", "Prefect worker"]
OUTLIVED = ("Prefect server", "Prefect worker")
"""Targets without which a run continues to its end. Each run evaluates with a new seed;
otherwise the next would have nothing to do."""
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


def kill_again_and_again(project: Project, target: str, number: int, kills: int) -> KillRow:
    """Inflict up to `kills` SIGKILLs on one target, in runs of one data set.

    Args:
        project: the folder of the runs.
        target: one of `TARGETS`.
        number: seed of the data set and of the moments.
        kills: maximum; fewer if a run ends before its kill.

    Returns:
        The number of kills, the stages hit, the last message, the next run, the failed checks.
    """
    rng = random.Random(f"{target}/{number}")
    settings = [f"prepare.synthetic.seed={1000 * (2 + TARGETS.index(target)) + number}"]
    done: set[str] = set()
    hit: list[str] = []
    wrong: list[str] = []
    ended = Ended(0, "")
    with attempt_on(project, target) as attempt:
        while len(hit) < kills:
            seed = [f"evaluate.seed={1 + len(hit)}"] if target in OUTLIVED else []
            ended, stage = attempt([*settings, *seed], rng.uniform(0, SPAN_S))
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


def attempt_on(project: Project, target: str) -> AbstractContextManager[Attempt]:
    """Attempts in the surroundings that the target needs, such as a server or a worker."""
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
    """Attempts by the deployment `rlm/full`; a second worker starts as soon as one is killed."""

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
    """Run a Prefect server that schedules, with the deployments and automations of `make up`."""
    with prefect_server(project):
        project.command("-m", "prefect", *POOL)
        project.command("-m", "prefect", "--no-prompt", "deploy", "--all")
        project.command("-c", "from flows.services import automations; automations.apply()")
        yield


def worker(project: Project) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run a worker of the pool; its child processes may outlive it."""
    health = f"{project.environment['PREFECT_API_URL']}/health"
    return project.server("prefect", "worker", "start", "--pool", "local", health=health)


def ask_for_a_run(project: Project, settings: list[str]) -> str:
    """Request `rlm/full` with these settings; return the id of the flow run."""
    (project.folder / PRINTED).unlink(missing_ok=True)
    return project.last_line(_ASK.format(overrides=[*TINY, *settings]))


def printed(project: Project) -> str:
    """Output of the worker's run so far."""
    log = project.folder / PRINTED
    return log.read_text(encoding="utf-8") if log.exists() else ""


def end_of(project: Project, run: str) -> str:
    """Wait for the end of a flow run; return Prefect's state of it as one line."""
    return project.last_line(_AWAIT.format(run=run))


def _wait(chain: ChainProcess, seconds: float) -> None:
    """Wait for these seconds, or until the run ends."""
    moment = time.monotonic() + seconds
    while time.monotonic() < moment and chain.process.poll() is None:
        time.sleep(0.05)
