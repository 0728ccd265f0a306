"""MLflow runs: one run per pipeline, one child run per stage.

All numbers go through `StageRun`, which sends them in batches (a single metric costs 27 ms, a
batch of a hundred 0.1 s). Without `MLFLOW_TRACKING_URI` the store is `mlflow.db` and
`mlartifacts/` beside params.yaml; see `mlflow/README.md`.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, unquote

from agent.errors import disk_is_full
from env.settings import flatten
from env.variables import PARENT_RUN
from tasks.errors import ConfigError, PipelineError, StageError, full_disk, stage_named
from tasks.tracking import datasets, lineage

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run

    from tasks.config.params import Params

EXPERIMENT = "rlm"
FLUSH_S = 5.0
RETRY_S = 60.0
"""Seconds until a failed store is tried again."""
STORE = Path("mlflow.db")
ARTIFACTS = "mlartifacts"
"""Folder of a local store's files, beside its database."""
_USERINFO = re.compile(r"://[^/@:\s]*(:\S*)?@")
"""Name and password of an address anywhere in a text."""

Status = Literal["FINISHED", "FAILED", "KILLED"]

logger = logging.getLogger(__name__)


class StageRun:
    """One MLflow run; metrics are sent in batches, when 100 wait or after 5 s.

    A store that fails while a run is open never ends the stage. Numbers wait, files stay where they
    are, and a warning is logged.
    """

    def __init__(self, client: MlflowClient, run_id: str, experiment_id: str = "0") -> None:
        self.client = client
        self.run_id = run_id
        self.experiment_id = experiment_id
        self._waiting: list[tuple[str, float, int, int]] = []
        self._next = time.monotonic() + FLUSH_S
        self._failed = False
        self.status: Status | None = None
        """Final status; None while the run is open."""
        self.closed = False
        """Whether the store has recorded the end."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record numbers by name (`area/name`); `step` counts optimizer steps, None means 0."""
        now_ms = int(time.time() * 1000)
        self._waiting += [(name, float(v), now_ms, step or 0) for name, v in metrics.items()]
        if time.monotonic() > self._next or (len(self._waiting) >= 100 and not self._failed):
            self.flush()

    def flush(self) -> None:
        """Send the waiting metrics; those that the store does not accept go on waiting."""
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
        """Continue if the store fails, and warn once per outage."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, OSError) as error:
            if not self._failed:
                refused = f"{what} ({first_line(error)})"
                logger.warning(
                    f"MLflow at {shown_uri()} does not accept {refused}; the stage goes on, its "
                    "numbers wait"
                )
            self._failed = True
            self._next = time.monotonic() + RETRY_S

    def log_artifact(self, path: str | Path) -> None:
        """Store a copy of a file, or of a folder's files."""
        path = Path(path)
        with self._trying(str(path)):
            if path.is_dir():
                self.client.log_artifacts(self.run_id, str(path), artifact_path=path.name)
            else:
                self.client.log_artifact(self.run_id, str(path))

    def log_table(self, rows: Sequence[Mapping[str, Any]], name: str) -> None:
        """Append rows with equal keys to the table `name`, which the UI shows."""
        if rows:
            columns = {key: [row[key] for row in rows] for key in rows[0]}
            with self._trying(f"the table {name}"):
                self.client.log_table(self.run_id, columns, f"tables/{name}.json")

    def log_inputs(self, datasets: Sequence[DatasetInput]) -> None:
        """Record the data that the run reads."""
        if not datasets:
            return
        with self._trying("the data sets"):
            self.client.log_inputs(self.run_id, datasets=datasets)

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set or replace tags; values become text."""
        from mlflow.entities import RunTag

        run_tags = [RunTag(key, str(value)[:5000]) for key, value in tags.items()]
        with self._trying("tags"):
            self.client.log_batch(self.run_id, tags=run_tags)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record settings once, a hundred at a time (MLflow's limit)."""
        from mlflow.entities import Param

        items = [Param(key, str(value)[:5000]) for key, value in params.items()]
        for start in range(0, len(items), 100):
            self.client.log_batch(self.run_id, params=items[start : start + 100])

    def end(self, status: Status) -> bool:
        """Send the waiting metrics and close the run; False if the store did not accept it."""
        self.status = status
        self.flush()
        if self._waiting:
            logger.warning("%d numbers were not recorded; reports/ has them", len(self._waiting))
        with self._trying("the end of the run"):
            self.client.set_terminated(self.run_id, status)
            self.closed = True
        return self.closed


def tracking_uri() -> str:
    """Address of the MLflow store."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{STORE}"


def local_store(uri: str) -> Path:
    """Database file of a local store's address."""
    return Path(uri.removeprefix("sqlite:///"))


def _artifacts(store: Path) -> Path:
    return store.resolve().parent / ARTIFACTS


def require_here(store: Path) -> None:
    """Refuse a local store whose files are those of another folder.

    MLflow records absolute addresses. In a moved project they lead nowhere, and in a copied one to
    the files of the original.

    Args:
        store: the database; it need not exist.

    Raises:
        ConfigError: the project was moved or copied, or the store is empty.
    """
    if store.is_file() and not store.stat().st_size:
        raise ConfigError(
            f"{store} is empty: its runs and versions are lost. Restore a copy of it, or delete it "
            "to begin anew, without a champion."
        )
    here = _artifacts(store)
    query = "SELECT artifact_location FROM experiments WHERE artifact_location LIKE 'file:%'"
    try:
        address = f"file:{quote(str(store.resolve()))}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as database:
            rows = database.execute(query).fetchall()
    except sqlite3.Error:  # there is none, or MLflow names its fault
        return
    for (location,) in rows:
        place = Path(unquote(location.removeprefix("file://")))
        if place.name == ARTIFACTS and place.resolve() != here:
            link = shlex.join(["ln", "-s", str(here.parent), str(place.parent)])
            raise ConfigError(
                f"{store} expects its files in {place}: this project was moved or copied. If it "
                f"was moved, run `{link}`. If this is a copy, delete {store} and {here}."
            )


def shown_uri() -> str:
    """Address of the store without name, password and query, for messages and links."""
    return without_password(tracking_uri())


def without_password(url: str) -> str:
    """An address without name, password and query."""
    return _USERINFO.sub("://", url).partition("?")[0]


@cache
def client(uri: str) -> MlflowClient:
    """MLflow client of an address.

    Raises:
        ConfigError: it is a database of a server, which has a place for its files. Or it is a local
            one that expects its files in another folder.
    """
    if uri.startswith("sqlite:"):
        require_here(local_store(uri))
    if re.match(r"(postgresql|mysql|mssql)\b", uri):
        raise ConfigError(
            f"MLFLOW_TRACKING_URI names a database ({without_password(uri)}), which has no place "
            "for files. Start an MLflow server on it, and name the server."
        )
    # Artifacts go through the server: this machine need not reach its bucket, and logs have no
    # signed address.
    os.environ.setdefault("MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD", "false")
    os.environ.setdefault("MLFLOW_ENABLE_PROXY_MULTIPART_UPLOAD", "false")
    # Alembic logs every migration of a new store.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    # Retries are not logged; the final failure is reported once, by this module.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    import mlflow

    _make_store(uri)
    mlflow.set_tracking_uri(uri)
    return mlflow.MlflowClient(tracking_uri=uri)


def _make_store(uri: str) -> None:
    """Create a local store under a temporary name and link it into place.

    Its tables are created in many steps over seconds. A process killed between two of them would
    leave a store that no later run can open.
    """
    path = local_store(uri)
    if not uri.startswith("sqlite:///") or path.exists():
        return
    import mlflow

    path.parent.mkdir(parents=True, exist_ok=True)
    # A different name each time: MLflow caches open stores.
    aside = path.with_name(f"{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        mlflow.MlflowClient(tracking_uri=f"sqlite:///{aside}").search_experiments(max_results=1)
        with suppress(FileExistsError):  # another process made it in between
            os.link(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def experiment_id(name: str) -> str:
    """Id of the experiment, which is created on first use with artifacts beside a local store."""
    from mlflow.exceptions import MlflowException

    uri = tracking_uri()
    experiment = client(uri).get_experiment_by_name(name)
    if experiment is None:
        location = None
        if uri.startswith("sqlite:"):
            location = _artifacts(local_store(uri)).as_uri()
        try:
            return str(client(uri).create_experiment(name, artifact_location=location))
        except MlflowException:  # another process made it in between
            experiment = client(uri).get_experiment_by_name(name)
            if experiment is None:
                raise
    return str(experiment.experiment_id)


@contextmanager
def answering() -> Iterator[MlflowClient]:
    """Client of the store; failures become one error with the address and a fix.

    Raises:
        StageError: the server is gone, the database is locked or broken.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    uri = tracking_uri()
    try:
        yield client(uri)
    except (MlflowException, SQLAlchemyError) as error:
        if disk_is_full(error):
            raise full_disk(error) from None
        remedy = "Wait for the process that locks it, or restore the file"
        if uri.startswith("http"):
            remedy = "Start its server (make up), or unset MLFLOW_TRACKING_URI to use mlflow.db"
        why = f"does not answer ({first_line(error)})"
        if "out-of-date database schema" in str(error):
            why = "is of another version of MLflow"
            remedy = (
                f"Copy the database and run `mlflow db upgrade {shown_uri()}`. If that fails, the "
                "database is newer: install its version"
            )
        raise StageError(
            f"MLflow at {shown_uri()} {why}. {remedy}, then run the same command again: finished "
            "stages are kept."
        ) from None  # it may contain the full address, and Prefect shows whole tracebacks


def first_line(error: BaseException) -> str:
    """First line of a message, without a client's internals and the passwords of addresses."""
    line = (str(error) or type(error).__name__).split("\n")[0]
    line = re.sub(r" failed with exception HTTP\w*\(.*", " got no answer", line)
    return _USERINFO.sub("://", line)[:300]


def start_run(
    name: str,
    params: Params,
    parent: str | None = None,
    title: str | None = None,
    begun: Callable[[str], object] | None = None,
) -> StageRun:
    """Open a run with its lineage.

    Args:
        name: the stage, or another purpose of the run.
        params: without parent, those that differ from the defaults are recorded; a stage's run
            records those it reads.
        parent: id of the parent run.
        title: name on pages, after the time: pages cut off long names; None means `name`.
        begun: called with the run's id as soon as it exists.

    Raises:
        StageError: MLflow does not answer.
    """
    from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

    # Set at once, so that a run killed a moment later can be found.
    tags = {"stage": name} | ({MLFLOW_PARENT_RUN_ID: parent} if parent else {})
    with answering() as store:
        experiment = experiment_id(EXPERIMENT)
        shown = f"{datetime.now():%m-%d %H:%M} {title or name}"
        made = store.create_run(experiment, run_name=shown, tags=tags)
        if begun is not None:
            begun(made.info.run_id)
        run = StageRun(store, made.info.run_id, experiment)
        settings, usual = (
            flatten(one.model_dump(by_alias=True, mode="json")) for one in (params, type(params)())
        )
        keys = [key for key in settings if _reads(name, key)] if parent else ["profile"]
        if parent is None:
            keys += [key for key, value in settings.items() if value != usual.get(key)]
        run.log_params({key: settings[key] for key in keys})
    run.set_tags(lineage.tags(params, name))
    return run


def _reads(stage: str, setting: str) -> bool:
    """Whether a stage's run records a setting: its own section, and those of every episode."""
    sections = ("gate", "warmstart") if stage == "zeroshot" else (stage,)
    return setting.split(".")[0] in (*sections, "profile", "env", "generation", "rewards")


@contextmanager
def stage_run(name: str, params: Params, title: str | None = None) -> Iterator[StageRun]:
    """MLflow run of one stage, a child of the run that `RLM_PARENT_RUN_ID` names.

    An exception ends it as FAILED with the message in the tag `error`, an interrupt as KILLED. The
    stage's name is added to messages of its errors.
    """
    run = start_run(name, params, os.environ.get(PARENT_RUN) or None, title)
    if name in datasets.READ:
        run.log_inputs(datasets.inputs(datasets.READ[name]))
    started = time.monotonic()
    try:
        with stage_named(name):
            yield run
    except Exception as error:
        run.set_tags({"error": str(error) or type(error).__name__})
        recorded = run.end("FAILED")
        if isinstance(error, PipelineError):
            error.recorded = recorded
        raise
    except BaseException:
        run.end("KILLED")
        raise
    run.log_metrics({"stage/seconds": time.monotonic() - started})
    run.end("FINISHED")


def result_metrics(described: Mapping[str, Any]) -> dict[str, float]:
    """Metrics that compare models, with the same names on every run that measured one.

    Args:
        described: one model's part of an evaluation, from `agent.evaluation.report.describe`.
    """
    alone, tokens = described["latency"]["one_at_a_time"], described["tokens"]
    metrics = {
        "reward": described["reward_mean"],
        "f1": described["f1_greedy"],
        "f1_sampled": described["f1_sampled"],
        "success_rate": described["success_rate"],
        "latency_p50_s": alone["p50_s"],
        "latency_p95_s": alone["p95_s"],
        "tokens_per_episode": tokens["sampled_per_episode"],
    }
    return {f"result/{name}": value for name, value in metrics.items() if value is not None}


def find_child(parent: str, stage: str) -> Run | None:
    """The stage's run under `parent`; None without one.

    Raises:
        StageError: MLflow does not answer.
    """
    with answering() as store:
        children = store.search_runs(
            [experiment_id(EXPERIMENT)],
            f"tags.`mlflow.parentRunId` = '{parent}' and tags.stage = '{stage}'",
            max_results=1,
        )
    return children[0] if children else None


def close_left(run_id: str, status: Status = "KILLED") -> None:
    """End a run that is still marked as running, and its children.

    Args:
        run_id: run of a chain or stage that was killed, or whose end was not recorded.
        status: final status of the run; unfinished children are killed.

    Raises:
        StageError: MLflow does not answer.
    """
    from mlflow.exceptions import MlflowException

    with answering() as store:
        try:
            experiment = store.get_run(run_id).info.experiment_id
        except MlflowException as error:
            # Another store than last time, or no run's id.
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return
            raise
        children = store.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{run_id}'")
        for run in [*children, store.get_run(run_id)]:
            if run.info.status == "RUNNING":
                own = run.info.run_id == run_id
                store.set_terminated(run.info.run_id, status if own else "KILLED")
