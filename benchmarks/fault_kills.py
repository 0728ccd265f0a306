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
)
from flows.chain import PRINTED
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
            ended, stage = attempt(settings, rng.uniform(0, SPAN_S))
            wrong += [f"kill {len(hit)}: {text}" for text in project.made_again(done, ended)]
            done |= set(ended.stages("✓="))
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
    """Runs of the deployment `rlm/full`, beside whose worker another one is started at once.

    Each run evaluates anew, so that none has nothing to do.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    serve = ["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    pool = ["work-pool", "create", "local", "--type", "process", "--overwrite"]
    count = 0
    printed = project.folder / PRINTED

    def worker() -> AbstractContextManager[subprocess.Popen[bytes]]:
        return project.server(
            "prefect", "worker", "start", "--pool", "local", health=f"{url}/health"
        )

    def attempt(settings: list[str], after_s: float) -> tuple[Ended, str | None]:
        nonlocal count
        count += 1
        asked = [*TINY, *settings, f"evaluate.seed={count}"]
        printed.unlink(missing_ok=True)
        with worker() as first:
            run = project.python(_ASK.format(overrides=asked)).strip().splitlines()[-1]
            time.sleep(after_s)
            told = printed.read_text(encoding="utf-8") if printed.exists() else ""
            os.kill(first.pid, signal.SIGKILL)
            with worker():
                said = project.python(_AWAIT.format(run=run)).strip().splitlines()[-1]
        begun = BEGUN.findall(told)
        code = 0 if "ended Completed" in said else 1
        return Ended(code, said), begun[-1] if begun else "before the first stage"

    with (
        project.using("PREFECT_API_URL", url),
        project.server(*serve, health=f"{url}/health"),
    ):
        project.command("prefect", *pool)
        project.command("prefect", "--no-prompt", "deploy", "--all")
        yield attempt


def _wait(chain: Chain, seconds: float) -> None:
    """Until the moment, or the run's end."""
    moment = time.monotonic() + seconds
    while time.monotonic() < moment and chain.process.poll() is None:
        time.sleep(0.05)
