"""What MLflow remembers: one run per pipeline, one child run per stage.

All numbers go through `StageRun`, which sends them in batches (a single metric costs 27 ms, a
batch of a hundred 0.1 s). Without `MLFLOW_TRACKING_URI` everything lands in `mlflow.db` and
`mlartifacts/` beside params.yaml; `mlflow/README.md` says how to read it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from tasks.config import Params

PARENT_RUN = "RLM_PARENT_RUN_ID"
STORE = Path("mlflow.db")
ARTIFACTS = Path("mlartifacts")
DATA = Path("data/problems")
DEPLOYMENT = Path("reports/deployment.json")
PACKAGES = ("torch", "transformers", "trl", "peft", "openenv", "prefect", "mlflow", "dvc")

Status = Literal["FINISHED", "FAILED", "KILLED"]


class StageRun:
    """One MLflow run. Metrics wait until 100 are there or 5 s have passed, then go as one batch."""

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self.client = client
        self.run_id = run_id
        self._waiting: list[tuple[str, float, int, int]] = []
        self._sent = time.monotonic()

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record numbers by name (`area/name`); `step` counts optimizer steps, None means 0."""
        now_ms = int(time.time() * 1000)
        self._waiting += [(name, float(v), now_ms, step or 0) for name, v in metrics.items()]
        if len(self._waiting) >= 100 or time.monotonic() - self._sent > 5.0:
            self.flush()

    def flush(self) -> None:
        """Send the metrics that wait."""
        from mlflow.entities import Metric

        waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), 1000):
            batch = [Metric(*item) for item in waiting[start : start + 1000]]
            self.client.log_batch(self.run_id, metrics=batch)
        self._sent = time.monotonic()

    def log_artifact(self, path: str | Path) -> None:
        """Keep a copy of a file, or of a folder's files."""
        path = Path(path)
        if path.is_dir():
            self.client.log_artifacts(self.run_id, str(path), artifact_path=path.name)
        else:
            self.client.log_artifact(self.run_id, str(path))

    def log_table(self, rows: Sequence[Mapping[str, Any]], name: str) -> None:
        """Append rows with equal keys to the table `name`; shown by the UI."""
        if rows:
            columns = {key: [row[key] for row in rows] for key in rows[0]}
            self.client.log_table(self.run_id, columns, f"tables/{name}.json")

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set or replace tags; values become text."""
        from mlflow.entities import RunTag

        kept = [RunTag(key, str(value)[:5000]) for key, value in tags.items()]
        self.client.log_batch(self.run_id, tags=kept)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record settings once, a hundred at a time (MLflow's limit)."""
        from mlflow.entities import Param

        items = [Param(key, str(value)[:5000]) for key, value in params.items()]
        for start in range(0, len(items), 100):
            self.client.log_batch(self.run_id, params=items[start : start + 100])

    def end(self, status: Status) -> None:
        """Send what waits and close the run."""
        self.flush()
        self.client.set_terminated(self.run_id, status)


def tracking_uri() -> str:
    """Where runs are recorded."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{STORE}"


@cache
def client(uri: str) -> MlflowClient:
    """The MLflow client of one address."""
    # Alembic tells about every migration of a fresh store; nobody reads that.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
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


def start_run(name: str, params: Params, parent: str | None = None) -> StageRun:
    """Open a run with its lineage; a child of `parent` (a run id) when given."""
    from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

    tags = {MLFLOW_PARENT_RUN_ID: parent} if parent else {}
    store = client(tracking_uri())
    made = store.create_run(experiment_id(params.tracking.experiment), run_name=name, tags=tags)
    run = StageRun(store, made.info.run_id)
    run.log_params(flatten(params.model_dump(by_alias=True, mode="json")))
    run.set_tags({"stage": name, **lineage(params, name)})
    return run


@contextmanager
def stage_run(name: str, params: Params) -> Iterator[StageRun]:
    """The MLflow run of one stage; a child of the run that `RLM_PARENT_RUN_ID` names.

    An exception ends it as FAILED, an interrupt as KILLED; the tag `error` says why.
    """
    run = start_run(name, params, os.environ.get(PARENT_RUN) or None)
    started = time.monotonic()
    try:
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


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def lineage(params: Params, stage: str | None = None) -> dict[str, str]:
    """What it takes to do this again: commit, data, settings, seed, versions, sandbox."""
    sandbox = deployment()
    return {
        "commit": commit(),
        "data_hash": data_hash(),
        "params_hash": params_hash(params),
        "seed": str(seed_of(params, stage)),
        "versions": json.dumps(versions()),
        "sandbox": ",".join(sandbox.get("sandbox", [])) or "unknown: no reports/deployment.json",
        "sandbox_backend": sandbox.get("sandbox_backend") or "unknown: no reports/deployment.json",
    }


@cache
def commit() -> str:
    """The commit of the working tree, `-dirty` when tracked files differ from it."""
    try:
        text = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "no git"
    return text.stdout.strip()


def data_hash() -> str:
    """A hash of the problems' files, names included; `none` before prepare."""
    return folder_hash(DATA) if DATA.is_dir() else "none"


def folder_hash(folder: Path) -> str:
    """`files_hash` of everything in a folder."""
    return files_hash(sorted(p for p in folder.rglob("*") if p.is_file()), folder)


def files_hash(files: Sequence[Path], folder: Path) -> str:
    """The first 16 hex digits of SHA-256 over files and their names relative to `folder`."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


def params_hash(params: Params) -> str:
    """The first 16 hex digits of SHA-256 over the settings in force."""
    text = json.dumps(params.model_dump(by_alias=True, mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def seed_of(params: Params, stage: str | None) -> int:
    """The stage's own seed; the training's for stages without one."""
    if stage == "prepare":
        return params.prepare.synthetic.seed
    if stage == "warmstart":
        return params.warmstart.nano.seed
    section = getattr(params, stage, None) if stage else None
    seed: int = getattr(section, "seed", params.train.seed)
    return seed


@cache
def versions() -> dict[str, str]:
    """Installed versions of the packages that decide the numbers."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def deployment() -> dict[str, Any]:
    """What the deploy stage wrote down of the environment; empty before it."""
    try:
        return dict(json.loads(DEPLOYMENT.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def find_child(params: Params, parent: str, stage: str) -> Run | None:
    """The stage's run under `parent`, if it has one."""
    found = client(tracking_uri()).search_runs(
        [experiment_id(params.tracking.experiment)],
        f"tags.`mlflow.parentRunId` = '{parent}' and tags.stage = '{stage}'",
        max_results=1,
    )
    return found[0] if found else None


def close_killed(run_id: str) -> None:
    """End a run, and the children that still count as running, whose process was killed."""
    from mlflow.exceptions import MlflowException

    store = client(tracking_uri())
    try:
        experiment = store.get_run(run_id).info.experiment_id
    except MlflowException:  # another store than last time
        return
    children = store.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{run_id}'")
    for run in [*children, store.get_run(run_id)]:
        if run.info.status == "RUNNING":
            store.set_terminated(run.info.run_id, "KILLED")
