"""The chain: Prefect flow `rlm`, from data to a registered recursive model.

Prefect decides when a stage runs, DVC whether it must, and MLflow records it. Each task asks DVC
to reproduce its stage, and DVC runs the command only if an input changed. Neighbours:
`flows/stages.py` runs one stage, `flows/summary.py` collects the results, `flows/pipeline.py` is
the command line.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from prefect import State, flow, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from rich.console import Console
from rich.text import Text

from env import variables
from flows import notifications, stages, summary
from flows.doctor import require_card, require_model
from flows.runtime import exclusive, set_environment
from flows.services import processes
from flows.services.password import password
from tasks import config, paths
from tasks.config.params import Params
from tasks.errors import ConfigError, GateFailed, StageError, stage_named
from tasks.io import read_json, write_json
from tasks.tracking import datasets, lineage, runs

MARK = paths.RUN / "chain.json"
"""Names the run in progress here. It's removed at its end, so a leftover was killed."""

console = Console(highlight=False, soft_wrap=True)


@flow(name="rlm", flow_run_name="full {profile}", retries=0, log_prints=False)
def rlm(profile: str = "nano", overrides: list[str] | None = None) -> State[str]:
    """Run the chain, from the data to a registered, judged and pushed model.

    Args:
        profile: `nano` is params.yaml itself; others are in profiles/.
        overrides: `section.key=value`, each applied over the profile.

    Returns:
        A Prefect state: Completed, or Failed named `Gated` with the gate's advice.
    """
    with notifications.failure_told():
        params = config.resolve(profile, overrides or [])
        set_environment(params.threads)
        with exclusive():
            return run_stages(params)


def run_stages(params: Params, kind: str = "full") -> State[str]:
    """Run all stages in order; the caller holds the lock of the folder.

    Args:
        params: the settings in force.
        kind: name and tag of the MLflow run, `full` or `retrain`.
    """
    with Chain(params, kind) as chain:
        chain.run("prepare")
        chain.run("validate")
        chain.deploy()
        chain.run("audit")
        chain.run("zeroshot")
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
        chain.run("push")
        return Completed(message=chain.finish())


class Chain:
    """One run of the chain: its MLflow parent, its environment, and the outcome of each stage.

    Leaving the block always stops the environment and closes the MLflow run.
    """

    def __init__(self, params: Params, kind: str = "full") -> None:
        self.params = params
        self.kind = kind
        self.rows: list[summary.StageRow] = []
        self._open = ExitStack()

    def __enter__(self) -> Chain:
        config.write_resolved(self.params)
        killed = clean_after_killed_run()
        os.environ[variables.CHAIN] = str(os.getpid())
        # DVC starts `python`: it must be this interpreter, whichever shell called us.
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        print_kept(unchanged := stages.unchanged(self.params.push.remote), killed=killed)
        if "train" not in unchanged:
            require_card(self.params)
        if "warmstart" not in unchanged:
            require_model(self.params)
        title = f"{self.params.profile} {self.kind}"
        name = f"rlm-{self.params.profile}"
        try:
            self._mlflow = runs.start_run(name, self.params, title=title, begun=mark)
        except Exception:
            unmark(None)
            raise
        self._mlflow.set_tags({"kind": self.kind})
        self._mlflow.log_artifact(config.RESOLVED)
        os.environ[variables.PARENT_RUN] = self._mlflow.run_id
        notifications.link_to(self._mlflow)
        return self

    def run(self, name: str) -> None:
        """Run one stage as a Prefect task; DVC may find that nothing changed."""
        started = time.monotonic()
        number, count = list(stages.STAGES).index(name) + 1, len(stages.STAGES)
        announce(f"\n[bold]{number}/{count} {name}[/]  {stages.STAGES[name]}")
        outcome = "interrupted"
        try:
            outcome = "cached" if _stage.with_options(name=name)(name, self.params) else "done"
        except GateFailed:
            outcome = "refused"
            raise
        except Exception:
            outcome = "failed"
            raise
        finally:
            self.rows.append(summary.StageRow(name, outcome, time.monotonic() - started))
            announce(summary.line(self.rows[-1]))
        if name == "prepare":
            self._mlflow.log_inputs(datasets.inputs())
        if name == "zeroshot" and (verdict := read_json(paths.ZERO_SHOT).get("advice")):
            notifications.log(f"zeroshot: {verdict}")
        if name == "train":  # so that MLflow compares the curves of chains
            for step, figures in summary.read_curves():
                self._mlflow.log_metrics(figures, step)

    def deploy(self) -> None:
        """Start the environment for the stages that follow; RLM_ENV_URL holds its address."""
        from tasks.deployment.environment import environment

        with stage_named("deploy"):
            url = self._open.enter_context(environment(self.params))
        os.environ[variables.URL] = url
        self._open.callback(os.environ.pop, variables.URL, None)
        self.run("deploy")

    def refuse(self, refusal: GateFailed) -> None:
        """Record in MLflow and Prefect why nothing was trained, and the advice."""
        self._mlflow.set_tags({"gate": "refused", "advice": str(refusal)})
        notifications.failed(refusal)

    def finish(self) -> str:
        """Send the final figures to MLflow and Prefect; return the result as one line."""
        result = summary.read_figures(self.rows, notifications.run_url(self._mlflow))
        self._mlflow.log_metrics(result.metrics)
        # The tags set at the start describe the previous run: data and environment are new.
        note = summary.markdown(result)
        tags = {"result": result.headline, "mlflow.note.content": note}
        tags |= lineage.tags(self.params)
        self._mlflow.set_tags(tags)
        for path in ("dvc.lock", "reports/index.html", "reports/plots"):
            if Path(path).exists():
                self._mlflow.log_artifact(path)
        notifications.result(note)
        for name, figure in result.lines:
            notifications.log(f"{name}: {figure}")
        notifications.flush()
        return result.headline

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._open.close()
        os.environ.pop(variables.PARENT_RUN, None)
        gated = any(row.outcome == "refused" for row in self.rows)
        status: runs.Status = "FAILED" if gated else "FINISHED"
        if kind is not None:
            status = "FAILED" if issubclass(kind, Exception) else "KILLED"
        self._mlflow.end(status)
        unmark(self._mlflow)


# No retries: a stage takes minutes, and the next run resumes at it anyway. No cache of Prefect's:
# it does not look at the outputs, as DVC does.
@task(retries=0, cache_policy=NO_CACHE)
def _stage(name: str, params: Params) -> State[None] | None:
    """Run one stage; returns a state that its page shows if DVC found its outputs up to date."""
    if name in stages.DIRECT:
        stages.run_stage(name)
        return None
    parent = os.environ[variables.PARENT_RUN]
    try:
        stages.reproduce(name)
    except (ConfigError, StageError) as error:
        reason = None
        if child := runs.find_child(parent, name):
            runs.close_left(child.info.run_id)  # its process may have been killed
            reason = child.data.tags.get("error")
        raise type(error)(reason or str(error)) from None
    if runs.find_child(parent, name):
        return None
    cached = runs.start_run(name, params, parent)
    cached.set_tags({"cached": "true"})
    cached.end("FINISHED")
    return Completed(name="Cached", message="DVC kept its results")


def announce(markup: str) -> None:
    """Print a line, and add it to the logs of the flow run."""
    console.print(markup)
    notifications.log(Text.from_markup(markup).plain.strip())


def play(profile: str, overrides: list[str]) -> int:
    """Run the flow from the command line; return the exit code: 0, or 3 when gated.

    It uses the Prefect server of PREFECT_API_URL or `make up` if that takes the password, else its
    own.
    """
    os.environ[variables.CHAIN] = str(os.getpid())
    # The terminal shows the stages' own output; Prefect's page shows its log.
    logging.getLogger("prefect").propagate = False
    # Lost logs and heartbeats: `flows/notifications.py` warns once when the server is gone.
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
        console.print(summary.LAST.read_text(encoding="utf-8"), markup=False)
        return 0
    if state.name == "Gated":
        console.print(f"[bold red]Gated[/] {state.message}")
        return GateFailed.exit_code
    error = state.result(raise_on_failure=False)
    if isinstance(error, BaseException):
        raise error
    raise StageError(f"the flow ended as {state.name} ({state.message})")


def without_prefect(error: Exception, started: float) -> int:
    """End a run whose Prefect server went away before the final state was recorded.

    Args:
        error: the client's error.
        started: begin of the run, in seconds since the epoch.

    Returns:
        The exit code 0, if all stages are done.

    Raises:
        StageError: a stage is not done, or no result was written.
    """
    gone = f"Prefect's server went away during the run ({error})"
    if not summary.LAST.exists() or summary.LAST.stat().st_mtime < started:
        raise StageError(
            f"{gone}. To continue, run the same command again; finished stages are kept."
        ) from error
    console.print(f"[yellow]{gone}; its page shows no final state, but every stage is done.[/]")
    console.print(summary.LAST.read_text(encoding="utf-8"), markup=False)
    return 0


@contextmanager
def prefect_server() -> Iterator[None]:
    """Use Prefect's configured server if it takes the password, else start one for the duration.

    Ctrl-C in the terminal would end Prefect's ephemeral server before it records the final state.
    This one has its own session, so only this function stops it.

    Raises:
        StageError: the server does not start.
    """
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    url, secret = PREFECT_API_URL.value(), {PREFECT_API_AUTH_STRING: password()}
    if url and processes.is_ours(url) and processes.takes_password(url):
        with temporary_settings(secret):
            yield
        return
    processes.forget_dead()
    server = processes.prefect_server(processes.free_port())
    try:
        processes.start(server, quiet=True, bound=True)
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{server.port}/api", **secret}):
            yield
    finally:
        notifications.flush()  # before the server stops
        processes.stop(server, quiet=True)
        processes.log_file(server).unlink(missing_ok=True)


def mark(run_id: str) -> None:
    """Write which MLflow run works here; if it is killed, the next run cleans up after it."""
    write_json(MARK, {"run_id": run_id, "process": str(os.getpid()), "flow_run": flow_run.id})


def unmark(run: runs.StageRun | None) -> None:
    """Remove the mark of a finished run if MLflow has recorded its status.

    Otherwise write the status into the mark, and the next run records it.

    Args:
        run: None if the run failed at its start, perhaps before it was marked.
    """
    with suppress(OSError):  # the disk is full
        if run is not None and run.closed:
            MARK.unlink(missing_ok=True)
            return
        if entry := read_json(MARK):
            write_json(MARK, {**entry, "ended": (run and run.status) or "FAILED"})


def clean_after_killed_run() -> bool:
    """Stop and close what a killed chain left behind; return whether one was killed."""
    if not (entry := read_json(MARK)):
        return False
    if "ended" in entry:  # the run ended by itself, and only MLflow could not record it
        runs.close_left(entry["run_id"], entry["ended"])
        MARK.unlink(missing_ok=True)
        return False
    stages.stop_leftovers(entry["process"])
    runs.close_left(entry["run_id"])
    notifications.crashed(entry.get("flow_run"))
    MARK.unlink(missing_ok=True)
    return True


def print_kept(unchanged: list[str], killed: bool) -> None:
    """Print whether this run starts clean or resumes earlier work."""
    if killed:
        console.print("The last run was killed; the processes it left behind are stopped.")
    if not (code := lineage.commit()).isalnum():
        init = "git init && " if code == "no git" else ""
        console.print(f"Code: {code}. `{init}git add . && git commit` lets you restore it later.")
    if not unchanged and Path(".dvc/cache/runs").is_dir():
        console.print("Starting at prepare; what earlier runs made of the same inputs is reused.")
    elif not unchanged and Path("dvc.lock").exists() and not Path(".dvc/cache/files").is_dir():
        console.print("Starting clean: this machine lacks dvc.lock's results (`dvc pull`).")
    elif not unchanged:
        console.print("Starting clean: no stage has results for the current inputs.")
    elif len(unchanged) == len(stages.BY_DVC):
        console.print("Nothing changed since the last run: every result is kept.")
    else:
        first = stages.BY_DVC[len(unchanged)]
        console.print(f"Resuming at {first}; kept unchanged: {', '.join(unchanged)}.")
