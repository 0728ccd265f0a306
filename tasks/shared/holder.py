"""The run that holds the shared store, and the number that keeps replaced runs out.

The record `holder.json` in the store names one run. A run that takes the store raises the record's
number by one, in a write that succeeds only if the record is unchanged. Each later write needs the
same number. So a run that was replaced, for example while its host was cut off, cannot
change what the next run reads. Without `RLM_REMOTE` nothing here does anything.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from env import variables
from tasks.errors import ConfigError, PipelineError, StageError
from tasks.shared import remote

RECORD = "holder.json"
CHECKPOINTS = "checkpoints"
CRASHES = 5
"""Restarts of one request after crashes, before it fails."""

CONFLICTS = 10
"""Tries to change the record."""

Record = dict[str, Any]
_ENTRIES = {"token", "host", "since", "request", "flow_run", "mlflow_run", "crashes", "ended"}

logger = logging.getLogger(__name__)


class ReplacedError(StageError):
    """Another run holds the store now."""


@contextmanager
def held(request: str, flow_run: str | None) -> Iterator[Record | None]:
    """Hold the store; yields the record of the last run if that one died.

    Args:
        request: what the run does; equal for a run and its restarts.
        flow_run: id of the Prefect run.

    Raises:
        ConfigError: the store's server does not check conditions of writes.
        StageError: another host took the store at the same moment, or the request crashed
            `CRASHES` times in a row.
    """
    died = _take(request, flow_run)
    try:
        yield died
    except BaseException:
        with suppress(PipelineError):  # the error of the run says more
            change(ended=True)
        raise
    else:
        change(ended=True, checkpoint=None)
        try:
            delete_checkpoints()
        except PipelineError as error:  # the next run deletes them
            logger.warning("pushed checkpoints were not deleted: %s", error)
    finally:
        del os.environ[variables.FENCE]


def _take(request: str, flow_run: str | None) -> Record | None:
    store = remote.store()
    before, version = _read()
    died = before if before and not before["ended"] else None
    again = bool(died and died["request"] == request)
    crashes = died["crashes"] + 1 if died and again else 0
    kept = {key: before.get(key) for key in ("checkpoint", "retrain")} if before else {}
    record = {
        **kept,
        "token": before["token"] + 1 if before else 1,
        "host": f"{socket.gethostname()}:{Path.cwd()}",
        "nonce": secrets.token_hex(8),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "request": request,
        "flow_run": flow_run,
        "mlflow_run": None,
        "crashes": crashes,
        "ended": crashes > CRASHES,
    }
    try:
        store.write(RECORD, record, version)
    except remote.RecordChangedError:
        if store.read(RECORD)[0] != record:  # else the client repeated a write, unanswered at first
            raise StageError(
                "another host took the run at the same moment. Wait for it, then run this again."
            ) from None
    _require_conditions(store, record, version)
    if died and record["ended"]:
        raise StageError(
            f"the run crashed {crashes} times in a row, last on {died['host']}. Read .run/flow.log "
            "there, then start it again."
        )
    os.environ[variables.FENCE] = str(record["token"])
    return died


def _require_conditions(store: remote.SharedStore, record: Record, replaced: str | None) -> None:
    """Refuse a server that writes the record although a newer version is stored."""
    with suppress(remote.RecordChangedError):
        store.write(RECORD, record, replaced)
        raise ConfigError(f"{variables.REMOTE} ({remote.address()}): {remote.UNCONDITIONAL}")


def delete_checkpoints(but: str = "") -> None:
    """Delete the pushed checkpoints of this run and earlier ones, except the folder `but`.

    A run that took over meanwhile keeps its own, because their names begin with a higher number.
    """
    own = int(os.environ[variables.FENCE])

    def chosen(folder: str) -> bool:
        number = folder.partition("-")[0]
        return folder != but and number.isdigit() and int(number) <= own

    remote.store().delete(CHECKPOINTS, chosen)


def check() -> None:
    """Check that this run still holds the store; each of its writes follows a check.

    Raises:
        ReplacedError: another run does.
    """
    if variables.FENCE in os.environ:
        _own_record()


def require_free() -> None:
    """Refuse a stage by hand beside a run of any host that holds the store: it has no number.

    A stage of a run is checked as by `check`.

    Raises:
        StageError: another run holds the store.
    """
    if variables.FENCE in os.environ or remote.address() is None:
        check()
        return
    record = _read()[0]
    if record and not record["ended"]:
        raise StageError(
            f"the run on {record['host']} since {record['since']} holds the shared store. Wait for "
            "its end; if it died, `rlm run` takes over."
        )


def entry(name: str) -> Any:
    """An entry of the record; None if it is missing or this run holds no store."""
    return _own_record()[0].get(name) if variables.FENCE in os.environ else None


def change(**entries: Any) -> None:
    """Change entries of the record; does nothing if this run holds no store.

    Raises:
        ReplacedError: another run holds the store; the record is unchanged.
        StageError: other processes of this run changed the record each time.
    """
    if variables.FENCE not in os.environ:
        return
    for _ in range(CONFLICTS):
        record, version = _own_record()
        with suppress(remote.RecordChangedError):  # by another process of this run
            remote.store().write(RECORD, {**record, **entries}, version)
            return
    raise StageError(f"{RECORD} of the shared store is changed all the time. Run this again.")


def _read() -> tuple[Record | None, str | None]:
    """The record and its version; without one, the numbers would begin again.

    Raises:
        ConfigError: what is stored is no record.
    """
    record, version = remote.store().read(RECORD)
    if version and not (isinstance(record, dict) and record.keys() >= _ENTRIES):
        raise ConfigError(
            f"{variables.REMOTE} ({remote.address()}): {RECORD} is not a record of this project. "
            "Restore an earlier version of the object, or name an empty place."
        )
    return record, version


def _own_record() -> tuple[Record, str | None]:
    record, version = _read()
    if record is None or str(record["token"]) != os.environ[variables.FENCE]:
        by = f"{record['host']} since {record['since']}" if record else "its record is gone"
        raise ReplacedError(
            f"another run took over ({by}), so this one pushes and registers nothing. Its results "
            "are in the shared store; nothing needs to be done here."
        )
    return record, version


def request_text(kind: str, **parameters: Any) -> str:
    """Text of a request, equal for a run and its restarts."""
    return json.dumps({"kind": kind, **parameters}, sort_keys=True)
