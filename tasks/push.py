"""Stage `push`: push everything that DVC recorded to its remote.

The default remote is the ignored folder `.dvc-remote/`. This is not a DVC stage, because a stage
must not call DVC on its own outputs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agent.errors import disk_is_full
from tasks.config import read_yaml
from tasks.config.params import Params
from tasks.errors import StageError
from tasks.tracking.runs import StageRun

if TYPE_CHECKING:
    from dvc.repo import Repo


def dvc_repo() -> Repo:
    """The project's DVC repository, on git if the folder has one."""
    from dvc.repo import Repo
    from dvc.scm import SCMError

    try:
        return Repo(".")
    except SCMError:  # an archive of the project
        return Repo(".", config={"core": {"no_scm": True}})


_ADVICE = {
    "RWLock": "While no run works here, delete .dvc/tmp/rwlock",
    "dvc.lock'": "In a merge, take a side: `git checkout --ours dvc.lock`; else see `git diff`",
    "dvc.yaml'": "See `git diff dvc.yaml`",
    "Invalid line": "See .dvc/config",
    "dvc-s3": "Run `pip install --constraint constraints.txt --editable '.[s3]'`",
}
"""What helps, by words of DVC's messages."""


def deepest(error: BaseException) -> str:
    """The message at the bottom of a chain of causes, or the first one that has advice."""
    while True:
        said = re.sub(r"\x1b\[\d*m", "", str(error))
        for words, advice in _ADVICE.items():
            if words in said:
                return f"{said}. {advice}"
        if error.__cause__ is None:
            return said
        error = error.__cause__


def run(params: Params, run: StageRun) -> None:
    """Push data, base, adapter and merged model of dvc.lock to the remote.

    Raises:
        StageError: an output is missing or differs from dvc.lock, or the remote refuses.
    """
    from dvc.exceptions import DvcException
    from dvc.lock import LockError

    name = params.push.remote
    failures: list[BaseException] = []
    try:
        with dvc_repo() as repo:
            if changed := repo.status():
                raise StageError(
                    f"{', '.join(sorted(changed))} changed since their last run. Run "
                    "`rlm run` or `dvc repro` first."
                )
            with transfer_failures(failures):
                pushed = repo.push(remote=name)
    except LockError as error:
        raise StageError(deepest(error)) from None
    except (DvcException, OSError, ImportError) as error:
        if full := next(filter(disk_is_full, [error, *failures]), None):
            raise full from None
        raise StageError(
            f"DVC could not push to the remote {name!r} ({deepest(error)}). "
            "List the remotes with `dvc remote list`."
        ) from None
    run.log_metrics({"push/files_pushed": float(pushed)})
    run.set_tags({"dvc.remote": name})
    run.log_artifact("dvc.lock")


@contextmanager
def transfer_failures(errors: list[BaseException]) -> Iterator[None]:
    """Collect the errors of single files, which DVC logs; its own error only counts them."""

    def keep(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            errors.append(error)
        return not disk_is_full(error)  # which is one message, and no traceback for each file

    transfers = logging.getLogger("dvc_data.hashfile.transfer")
    transfers.addFilter(keep)
    try:
        yield
    finally:
        transfers.removeFilter(keep)


def recorded() -> dict[str, str]:
    """MD5 hashes in dvc.lock by path of the output; DVC finds an output by its hash."""
    lock = Path("dvc.lock")
    stages = read_yaml(lock).get("stages", {}) if lock.exists() else {}
    outs = [out for stage in stages.values() for out in stage.get("outs", [])]
    return {out["path"].replace("/", "."): out["md5"] for out in outs if "md5" in out}
