"""What MLflow remembers: one run per pipeline, one child run per stage.

All numbers go through `StageRun`, which sends them in batches (a single metric costs 27 ms, a
batch of a hundred 0.1 s). Without `MLFLOW_TRACKING_URI` everything lands in `mlflow.db` and
`mlartifacts/` beside params.yaml; `mlflow/README.md` says how to read it.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from env.settings import flatten
from tasks import datasets, lineage
from tasks.errors import StageError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run

    from tasks.config import Params

FLUSH_S = 5.0
RETRY_S = 60.0
"""Seconds until a store that failed is asked again."""
PARENT_RUN = "RLM_PARENT_RUN_ID"
STORE = Path("mlflow.db")
ARTIFACTS = Path("mlartifacts")
_USERINFO = re.compile(r"://[^/@:\s]*(:\S*)?@")
"""Name and password of an address, wherever it stands in a text."""

Status = Literal["FINISHED", "FAILED", "KILLED"]

logger = logging.getLogger(__name__)


class StageRun:
    """One MLflow run. Metrics wait until 100 are there or 5 s have passed, then go as one batch.

    A store that fails once a run is open never ends the stage: numbers wait for it, files stay
    where they are, and a warning says so.
    """

    def __init__(self, client: MlflowClient, run_id: str, experiment_id: str = "0") -> None:
        self.client = client
        self.run_id = run_id
        self.experiment_id = experiment_id
        self._waiting: list[tuple[str, float, int, int]] = []
        self._next = time.monotonic() + FLUSH_S
        self._failed = False
        self.status: Status | None = None
        """How it ended; None before."""
        self.closed = False
        """Whether the store has heard it."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record numbers by name (`area/name`); `step` counts optimizer steps, None means 0."""
        now_ms = int(time.time() * 1000)
        self._waiting += [(name, float(v), now_ms, step or 0) for name, v in metrics.items()]
        now = time.monotonic()
        if now > self._next or (len(self._waiting) >= 100 and not self._failed):
            self.flush()

    def flush(self) -> None:
        """Send the metrics that wait; those that the store does not take go on waiting."""
        from mlflow.entities import Metric

        self._next = time.monotonic() + (RETRY_S if self._failed else FLUSH_S)
        with self._trying("numbers"):
            while self._waiting:
                batch = [Metric(*item) for item in self._waiting[:1000]]
                self.client.log_batch(self.run_id, metrics=batch)
                del self._waiting[:1000]
            self._failed = False

    @contextmanager
    def _trying(self, what: str) -> Iterator[None]:
        """Go on when the store fails, and warn, once for each time that it stops answering."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, OSError) as error:
            if not self._failed:
                logger.warning(
                    "MLflow at %s does not take %s (%s); the stage goes on, its numbers wait",
                    *(shown_uri(), what, first_line(error)),
                )
            self._failed = True
            self._next = time.monotonic() + RETRY_S

    def log_artifact(self, path: str | Path) -> None:
        """Keep a copy of a file, or of a folder's files."""
        path = Path(path)
        with self._trying(str(path)):
            if path.is_dir():
                self.client.log_artifacts(self.run_id, str(path), artifact_path=path.name)
            else:
                self.client.log_artifact(self.run_id, str(path))

    def log_table(self, rows: Sequence[Mapping[str, Any]], name: str) -> None:
        """Append rows with equal keys to the table `name`; shown by the UI."""
        if rows:
            columns = {key: [row[key] for row in rows] for key in rows[0]}
            with self._trying(f"the table {name}"):
                self.client.log_table(self.run_id, columns, f"tables/{name}.json")

    def log_inputs(self, datasets: Sequence[DatasetInput]) -> None:
        """Name the data that the run reads."""
        with self._trying("the data sets"):
            self.client.log_inputs(self.run_id, datasets=datasets)

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set or replace tags; values become text."""
        from mlflow.entities import RunTag

        kept = [RunTag(key, str(value)[:5000]) for key, value in tags.items()]
        with self._trying("tags"):
            self.client.log_batch(self.run_id, tags=kept)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record settings once, a hundred at a time (MLflow's limit)."""
        from mlflow.entities import Param

        items = [Param(key, str(value)[:5000]) for key, value in params.items()]
        for start in range(0, len(items), 100):
            self.client.log_batch(self.run_id, params=items[start : start + 100])

    def end(self, status: Status) -> bool:
        """Send what waits and close the run; False when the store did not take it."""
        self.status = status
        self.flush()
        if self._waiting:
            logger.warning("%d numbers were not recorded; reports/ has them", len(self._waiting))
        with self._trying("the end of the run"):
            self.client.set_terminated(self.run_id, status)
            self.closed = True
        return self.closed


def tracking_uri() -> str:
    """Where runs are recorded."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{STORE}"


def shown_uri() -> str:
    """The same without name, password and query: for messages and links."""
    return _USERINFO.sub("://", tracking_uri()).partition("?")[0]


@cache
def client(uri: str) -> MlflowClient:
    """The MLflow client of one address."""
    # Alembic tells about every migration of a fresh store; nobody reads that.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    # What is tried again is nobody's business; what failed for good is told once, by us.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    import mlflow

    _make_store(uri)
    mlflow.set_tracking_uri(uri)
    return mlflow.MlflowClient(tracking_uri=uri)


def _make_store(uri: str) -> None:
    """Make a local store aside and link it into place.

    Its tables are made in many steps, seconds long, and a process killed between two of them
    would leave a store that no later run can open.
    """
    path = Path(uri.removeprefix("sqlite:///"))
    if not uri.startswith("sqlite:///") or path.exists():
        return
    import mlflow

    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own each time: MLflow keeps what it opened.
    aside = path.with_name(f"{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        mlflow.MlflowClient(tracking_uri=f"sqlite:///{aside}").search_experiments(max_results=1)
        with suppress(FileExistsError):  # another process made it in between
            os.link(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def experiment_id(name: str) -> str:
    """The experiment's id; made on first use, with artifacts beside a local store."""
    from mlflow.exceptions import MlflowException

    uri = tracking_uri()
    found = client(uri).get_experiment_by_name(name)
    if found is None:
        local = f"{uri.removeprefix('sqlite:///')}" if uri.startswith("sqlite:") else None
        location = (Path(local).resolve().parent / ARTIFACTS).as_uri() if local else None
        try:
            return str(client(uri).create_experiment(name, artifact_location=location))
        except MlflowException:  # another process made it in between
            found = client(uri).get_experiment_by_name(name)
            if found is None:
                raise
    return str(found.experiment_id)


@contextmanager
def answering() -> Iterator[MlflowClient]:
    """The client of the store; what it cannot do is one error that says where and what to do.

    Raises:
        StageError: the server is gone, the database is locked or broken.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    uri = tracking_uri()
    try:
        yield client(uri)
    except (MlflowException, SQLAlchemyError) as error:
        remedy = (
            "start its server (make up), or unset MLFLOW_TRACKING_URI to record in mlflow.db"
            if uri.startswith("http")
            else "wait for the process that locks it, or restore the file"
        )
        raise StageError(
            f"MLflow at {shown_uri()} does not answer: {first_line(error)}; {remedy}, then run the "
            "same command again: finished stages are kept"
        ) from None  # it may name the address in full, and Prefect shows whole tracebacks


def first_line(error: BaseException) -> str:
    """The first line of a message that may hold a page of them.

    Less a client's inner life, and less the passwords of addresses.
    """
    told = (str(error) or type(error).__name__).split("\n")[0]
    told = re.sub(r" failed with exception HTTP\w*\(.*", " got no answer", told)
    return _USERINFO.sub("://", told)[:300]


def start_run(
    name: str,
    params: Params,
    parent: str | None = None,
    title: str | None = None,
    begun: Callable[[str], object] | None = None,
) -> StageRun:
    """Open a run with its lineage.

    Args:
        name: the stage, or what else the run does.
        params: all of them stand in a run without parent; a stage's run has those it reads.
        parent: id of the run that it is a child of.
        title: what pages show; the name unless given.
        begun: is told the run's id as soon as there is one.

    Raises:
        StageError: MLflow does not answer.
    """
    from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

    # By these a run is found that was killed a moment later.
    tags = {"stage": name} | ({MLFLOW_PARENT_RUN_ID: parent} if parent else {})
    with answering() as store:
        experiment = experiment_id(params.tracking.experiment)
        made = store.create_run(experiment, run_name=title or name, tags=tags)
        if begun is not None:
            begun(made.info.run_id)
        run = StageRun(store, made.info.run_id, experiment)
        settings = flatten(params.model_dump(by_alias=True, mode="json"))
        run.log_params({k: v for k, v in settings.items() if parent is None or reads(name, k)})
    run.set_tags(lineage.tags(params, name))
    return run


def reads(stage: str, setting: str) -> bool:
    """Whether a stage's own run shows a setting: its section, and what every episode depends on."""
    return setting.split(".")[0] in (stage, "profile", "env", "rewards")


@contextmanager
def stage_run(
    name: str, params: Params, begun: Callable[[str], object] | None = None
) -> Iterator[StageRun]:
    """The MLflow run of one stage; a child of the run that `RLM_PARENT_RUN_ID` names.

    An exception ends it as FAILED, an interrupt as KILLED; the tag `error` says why.
    """
    run = start_run(name, params, os.environ.get(PARENT_RUN) or None, begun=begun)
    if name in datasets.READ:
        datasets.log(run, datasets.READ[name])
    started = time.monotonic()
    try:
        with watched(run, params.tracking.system_s):
            yield run
    except Exception as error:
        run.set_tags({"error": str(error) or type(error).__name__})
        run.end("FAILED")
        raise
    except BaseException:
        run.end("KILLED")
        raise
    run.log_metrics({"stage/seconds": time.monotonic() - started})
    run.end("FINISHED")


@contextmanager
def watched(run: StageRun, every_s: float) -> Iterator[None]:
    """Sample processor, memory and disk of the machine into `system/...` metrics; 0: never."""
    if not every_s:
        yield
        return
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    logging.getLogger("mlflow.system_metrics").setLevel(logging.ERROR)
    monitor = SystemMetricsMonitor(
        run.run_id, sampling_interval=every_s, tracking_uri=tracking_uri()
    )
    monitor.start()
    try:
        yield
    finally:
        monitor.finish()


def result_metrics(described: Mapping[str, Any]) -> dict[str, float]:
    """The columns by which models are compared: the same names on every run that measured one.

    Args:
        described: one model's part of an evaluation, as `agent.evaluation.describe` makes it.
    """
    alone, tokens = described["latency"]["one_at_a_time"], described["tokens"]
    found = {
        "reward": described["reward_mean"],
        "f1_greedy": described["f1_greedy"],
        "f1_sampled": described["f1_sampled"],
        "success_rate": described["success_rate"],
        "latency_p50_s": alone["p50_s"],
        "latency_p95_s": alone["p95_s"],
        "tokens_per_episode": tokens["sampled_per_episode"],
    }
    return {f"result/{name}": value for name, value in found.items() if value is not None}


def find_child(params: Params, parent: str, stage: str) -> Run | None:
    """The stage's run under `parent`, if it has one.

    Raises:
        StageError: MLflow does not answer.
    """
    with answering() as store:
        found = store.search_runs(
            [experiment_id(params.tracking.experiment)],
            f"tags.`mlflow.parentRunId` = '{parent}' and tags.stage = '{stage}'",
            max_results=1,
        )
    return found[0] if found else None


def close_left(run_id: str, status: Status = "KILLED") -> None:
    """End a run that still counts as running, and its children.

    Args:
        run_id: of a chain or stage that was killed, or whose end the store did not take.
        status: how it ended; children without an end count as killed.

    Raises:
        StageError: MLflow does not answer.
    """
    from mlflow.exceptions import MlflowException

    with answering() as store:
        try:
            experiment = store.get_run(run_id).info.experiment_id
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":  # another store than last time
                return
            raise
        children = store.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{run_id}'")
        for run in [*children, store.get_run(run_id)]:
            if run.info.status == "RUNNING":
                own = run.info.run_id == run_id
                store.set_terminated(run.info.run_id, status if own else "KILLED")
