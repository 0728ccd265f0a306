"""The chain as prose: Prefect flow `rlm`, from data to a registered recursive model.

Prefect decides when, DVC decides whether, MLflow remembers: each task asks DVC to reproduce its
stage, and DVC runs the stage's command only if its inputs changed. Neighbours: `flows/stages.py`
runs one stage, `flows/summary.py` says how it went, `flows/pipeline.py` is the command line.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
from prefect import State, flow, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from rich.console import Console

from flows import notices, services, stages, summary
from flows.lock import RUNNING, exclusive
from flows.surroundings import settle
from tasks import config, datasets, lineage, tracking
from tasks.config import Params
from tasks.errors import ConfigError, GateFailed, StageError

MARK = RUNNING / "chain.json"
"""Which run works here; it outlives only a run that was killed."""

console = Console(highlight=False, soft_wrap=True)


@flow(name="rlm", retries=0, log_prints=False)
def rlm(profile: str = "nano", overrides: list[str] | None = None) -> State[str]:
    """Build, check, deploy, audit, gate, train, export, evaluate, register, promote, version.

    Args:
        profile: `nano` is params.yaml itself; others lie in profiles/.
        overrides: `section.key=value`, each laid over the profile.

    Returns:
        A Prefect state: Completed, or Failed named `Gated` with the gate's advice.
    """
    params = config.resolve(profile, overrides or [])
    settle(params.threads)
    with exclusive():
        return through(params)


def through(params: Params, kind: str = "full") -> State[str]:
    """All stages in their order; the caller holds the folder.

    Args:
        params: the settings in force.
        kind: what the MLflow run is called and tagged, `full` or `retrain`.
    """
    with Chain(params, kind) as chain:
        chain.run("prepare")
        chain.run("validate")
        chain.deploy()
        chain.run("audit")
        chain.run("warmstart")
        try:
            chain.run("gate")
        except GateFailed as refusal:
            chain.refuse(refusal)
            return Failed(name="Gated", message=str(refusal))
        chain.run("train")
        chain.run("export")
        chain.run("evaluate")
        chain.run("plots")
        chain.run("register")
        chain.run("promote")
        chain.run("version")
        return Completed(message=chain.finish())


class Chain:
    """One run of the chain: its MLflow parent, its environment, and what each stage did.

    Leaving it always stops the environment and closes the MLflow run, whatever happened.
    """

    def __init__(self, params: Params, kind: str = "full") -> None:
        self.params = params
        self.kind = kind
        self.rows: list[summary.Row] = []
        self._open = ExitStack()

    def __enter__(self) -> Chain:
        config.write_resolved(self.params)
        killed = clean_after_killed_run()
        os.environ[stages.CHAIN] = str(os.getpid())
        # DVC starts `python`: this very interpreter, whichever shell called us.
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        say_what_is_kept(stages.unchanged(), killed=killed)
        title = f"{self.kind} {self.params.profile} {datetime.now():%Y-%m-%d %H:%M}"
        name = f"rlm-{self.params.profile}"
        try:
            self._mlflow = tracking.start_run(name, self.params, title=title, begun=mark)
        except Exception:
            unmark(None)
            raise
        self._mlflow.set_tags({"kind": self.kind})
        os.environ[tracking.PARENT_RUN] = self._mlflow.run_id
        notices.link_to(self._mlflow.run_id, self.params.tracking.experiment)
        self._progress = notices.Progress()
        return self

    def run(self, name: str) -> None:
        """One stage as a Prefect task; DVC may find that nothing changed."""
        started = time.monotonic()
        number, count = list(stages.STAGES).index(name) + 1, len(stages.STAGES)
        console.print(f"\n[bold]{number}/{count} {name}[/]  {stages.STAGES[name]}")
        outcome = "interrupted"
        try:
            outcome = _stage.with_options(name=name)(name, self.params)
        except GateFailed:
            outcome = "refused"
            raise
        except Exception:
            outcome = "failed"
            raise
        finally:
            self.rows.append(summary.Row(name, outcome, time.monotonic() - started))
            console.print(summary.line(self.rows[-1:]))
        self._progress.advance(number / count, name)
        if name == "prepare":
            datasets.log(self._mlflow)
        if name == "promote":
            notices.promotion(self.params.register_.model_name)

    def deploy(self) -> None:
        """Start the environment for the stages that follow; they find it by RLM_ENV_URL."""
        from tasks import deploy

        url = self._open.enter_context(deploy.environment(self.params))
        os.environ[deploy.ENV_URL] = url
        self._open.callback(os.environ.pop, deploy.ENV_URL, None)
        self.run("deploy")

    def refuse(self, refusal: GateFailed) -> None:
        """Say in MLflow why nothing was trained, and what to do."""
        self._mlflow.set_tags({"gate": "refused", "advice": str(refusal)})

    def finish(self) -> str:
        """Closing figures, to MLflow and Prefect; returns the one-line result."""
        result = summary.read(self.rows)
        self._mlflow.log_metrics(result.metrics)
        # What it began with was the lineage of the run before: data and environment are new.
        self._mlflow.set_tags({"result": result.headline, **lineage.tags(self.params)})
        notices.result(summary.markdown(result))
        return result.headline

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._open.close()
        os.environ.pop(tracking.PARENT_RUN, None)
        gated = any(row.outcome == "refused" for row in self.rows)
        status: tracking.Status = "FAILED" if gated else "FINISHED"
        if kind is not None:
            status = "FAILED" if issubclass(kind, Exception) else "KILLED"
        self._mlflow.end(status)
        unmark(self._mlflow)


# Retries stay 0: a stage is minutes of computing, and the next run resumes at it anyway. DVC
# decides what is cached: Prefect's cache does not look at the outputs.
@task(retries=0, cache_policy=NO_CACHE)
def _stage(name: str, params: Params) -> str:
    """Run one stage, or learn from DVC that it need not run: `done` or `cached`."""
    if name in stages.DIRECT:
        stages.run_stage(name)
        return "done"
    parent = os.environ[tracking.PARENT_RUN]
    try:
        stages.reproduce(name)
    except (ConfigError, StageError) as error:
        reason = None
        if child := tracking.find_child(params, parent, name):
            tracking.close_left(child.info.run_id)  # its process may have been killed
            reason = child.data.tags.get("error")
        raise type(error)(reason or str(error)) from None
    if tracking.find_child(params, parent, name):
        return "done"
    cached = tracking.start_run(name, params, parent)
    cached.set_tags({"cached": "true"})
    cached.end("FINISHED")
    return "cached"


def play(profile: str, overrides: list[str]) -> int:
    """Run the flow from the command line; returns the exit code: 0, or 3 when gated.

    Uses the Prefect server of PREFECT_API_URL or `make up` when it answers, else one of its own.
    """
    os.environ[stages.CHAIN] = str(os.getpid())
    # The terminal shows the stages' own output; Prefect's log stands on its page.
    logging.getLogger("prefect").propagate = False
    # Logs and heartbeats to a server that is gone: `flows/notices.py` says it once.
    logging.raiseExceptions = False
    for name in ("EventsWorker", "prefect.events.clients"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    started = time.time()
    with prefect_server():
        try:
            state: State[Any] = rlm(profile, overrides, return_state=True)
        except httpx.TransportError as gone:
            return without_prefect(gone, started)
    if state.is_completed():
        console.print(summary.table(summary.read_last()))
        return 0
    if state.name == "Gated":
        console.print(f"[bold red]Gated[/] {state.message}")
        return GateFailed.exit_code
    error = state.result(raise_on_failure=False)
    if isinstance(error, BaseException):
        raise error
    raise StageError(f"the flow ended {state.name}: {state.message}")


def without_prefect(error: Exception, started: float) -> int:
    """The end of a run whose Prefect server went away before it heard how the run ended.

    Args:
        error: what the client says.
        started: when the run began, in seconds of the epoch.

    Returns:
        The exit code 0: all stages are done.

    Raises:
        StageError: they are not, or nobody knows.
    """
    gone = f"Prefect's server went away in mid-run ({error})"
    if not summary.LAST.exists() or summary.LAST.stat().st_mtime < started:
        raise StageError(f"{gone}; run the same command again: finished stages are kept") from error
    console.print(f"[yellow]{gone}: its page shows no end; every stage is done.[/]")
    console.print(summary.table(summary.read_last()))
    return 0


@contextmanager
def prefect_server() -> Iterator[None]:
    """Prefect's configured server if it is healthy, else one of our own for the duration.

    Prefect's ephemeral server would die of the terminal's Ctrl-C before the flow has told it how
    it ended; this one has a session of its own, and only we stop it.

    Raises:
        StageError: it does not start.
    """
    from prefect.logging.handlers import APILogHandler
    from prefect.settings import PREFECT_API_URL, temporary_settings

    url = PREFECT_API_URL.value()
    if url and services.answers(f"{url}/health"):
        yield
        return
    services.forget_dead()
    server = services.prefect_server(services.free_port())
    try:
        services.start(server, quiet=True, bound=True)
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{server.port}/api"}):
            yield
    finally:
        APILogHandler().flush()  # the flow's last words, while the server can still hear them
        services.stop(server, quiet=True)
        services.log_file(server).unlink(missing_ok=True)


def mark(run_id: str) -> None:
    """Write down which MLflow run works here, for the run after one that is killed."""
    told = {"run_id": run_id, "process": str(os.getpid()), "flow_run": flow_run.id}
    MARK.write_text(json.dumps(told), encoding="utf-8")


def unmark(run: tracking.StageRun | None) -> None:
    """Take the mark of a run that is over away, once MLflow has heard how it ended.

    Else the mark says it, and the next run tells MLflow.

    Args:
        run: None: it failed while it was begun, maybe before there was a mark.
    """
    with suppress(FileNotFoundError):
        if run is not None and run.closed:
            MARK.unlink()
            return
        told = json.loads(MARK.read_text(encoding="utf-8"))
        ended = (run and run.status) or "FAILED"
        MARK.write_text(json.dumps({**told, "ended": ended}), encoding="utf-8")


def clean_after_killed_run() -> bool:
    """Stop and close what a killed chain left behind; True if there was one."""
    try:
        told = json.loads(MARK.read_text(encoding="utf-8"))
        run_id, process = str(told["run_id"]), str(told["process"])
    except (OSError, ValueError, KeyError):
        return False
    if "ended" in told:  # it ended well or ill, and only MLflow was not there to hear of it
        tracking.close_left(run_id, told["ended"])
        MARK.unlink(missing_ok=True)
        return False
    stages.stop_leftovers(process)
    tracking.close_left(run_id)
    notices.crashed(told.get("flow_run"))
    MARK.unlink(missing_ok=True)
    return True


def say_what_is_kept(kept: list[str], killed: bool) -> None:
    """Tell whether this run starts clean or goes on from earlier work."""
    if killed:
        console.print("The last run was killed before it could end; what it left is stopped.")
    if not kept:
        console.print("Starting clean: no stage's result fits the present inputs.")
    elif len(kept) == len(stages.BY_DVC):
        console.print("Nothing changed since the last run: every result is kept.")
    else:
        first = stages.BY_DVC[len(kept)]
        console.print(f"Resuming at {first}; kept unchanged: {', '.join(kept)}.")
