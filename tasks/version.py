"""Stage `version`: what DVC recorded goes to its remote; afterwards nothing is left to push.

The default remote is the ignored folder `.dvc-remote/`. This is no DVC stage: a stage may not
call DVC on its own outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.errors import StageError

if TYPE_CHECKING:
    from tasks.config import Params
    from tasks.tracking import StageRun


def run(params: Params, run: StageRun) -> None:
    """Push data, base, adapter and merged model of dvc.lock to the remote.

    Raises:
        StageError: an output is missing or differs from dvc.lock, or the remote refuses.
    """
    from dvc.exceptions import DvcException
    from dvc.lock import LockError
    from dvc.repo import Repo

    remote = params.version.remote
    with Repo(".") as repo:
        try:
            if changed := repo.status():
                raise StageError(
                    f"version: {', '.join(sorted(changed))} changed since their last run; run "
                    "`python -m flows.pipeline run` or `dvc repro` first"
                )
            pushed = repo.push(remote=remote)
        except LockError as error:
            raise StageError(f"version: {error}") from None
        except (DvcException, OSError) as error:
            raise StageError(
                f"version: DVC could not push to the remote {remote!r}: {error}; "
                "`dvc remote list` shows the remotes"
            ) from None
    run.log_metrics({"version/files_pushed": float(pushed)})
    run.set_tags({"dvc.remote": remote, **{f"dvc.{k}": v for k, v in recorded().items()}})


def recorded() -> dict[str, str]:
    """What dvc.lock says of each versioned output: path to md5, by which DVC finds it again."""
    from pathlib import Path

    import yaml

    lock = Path("dvc.lock")
    if not lock.exists():
        return {}
    stages = yaml.safe_load(lock.read_text(encoding="utf-8")).get("stages", {})
    outs = [out for stage in stages.values() for out in stage.get("outs", [])]
    return {out["path"].replace("/", "."): out["md5"] for out in outs if "md5" in out}
