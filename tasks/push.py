"""Stage `push`: push everything that DVC recorded to its remote.

The default remote is the ignored folder `.dvc-remote/`; `RLM_REMOTE` names another one. This is
not a DVC stage, because a stage must not call DVC on its own outputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agent.errors import disk_is_full
from tasks import holder, remote
from tasks.config import read_yaml
from tasks.errors import StageError
from tasks.params import Params

if TYPE_CHECKING:
    from tasks.tracking.runs import StageRun


def run(params: Params, run: StageRun) -> None:
    """Push data, base, adapter and merged model of dvc.lock to the remote.

    Raises:
        StageError: an output is missing or differs from dvc.lock, or the remote refuses.
    """
    from dvc.exceptions import DvcException
    from dvc.lock import LockError

    holder.check()
    name = remote.NAME if remote.address() else params.push.remote
    with remote.repository() as repo:
        try:
            if changed := repo.status():
                raise StageError(
                    f"{', '.join(sorted(changed))} changed since their last run. Run "
                    "`rlm run` or `dvc repro` first."
                )
            pushed = repo.push(remote=name)
        except LockError as error:
            raise StageError(str(error)) from None
        except (DvcException, OSError) as error:
            if disk_is_full(error):
                raise
            raise StageError(
                f"DVC could not push to the remote {name!r} ({error}). "
                "List the remotes with `dvc remote list`."
            ) from None
    run.log_metrics({"push/files_pushed": float(pushed)})
    run.set_tags({"dvc.remote": name, **{f"dvc.{k}": v for k, v in recorded().items()}})


def recorded() -> dict[str, str]:
    """MD5 hashes in dvc.lock by path of the output; DVC finds an output by its hash."""
    lock = Path("dvc.lock")
    stages = read_yaml(lock).get("stages", {}) if lock.exists() else {}
    outs = [out for stage in stages.values() for out in stage.get("outs", [])]
    return {out["path"].replace("/", "."): out["md5"] for out in outs if "md5" in out}
