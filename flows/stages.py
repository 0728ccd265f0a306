"""The stages by name: description, execution, and reproduction through DVC.

Neighbours: `flows/chain.py` runs the stages in order, `flows/pipeline.py` is the command line.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agent.errors import disk_is_full
from env.variables import CHAIN
from flows.runtime import die_with_parent, set_environment
from tasks import paths
from tasks.errors import ConfigError, GateFailed, StageError, full_disk
from tasks.io import read_json, require

if TYPE_CHECKING:
    import psutil

STAGES = {
    "prepare": "Make the problems: data/problems/.",
    "validate": "Check them with Great Expectations: reports/data_docs/.",
    "deploy": "Start the environment, smoke-test it over the wire: reports/deployment.json.",
    "audit": "Play the problems with three scripted policies: reports/problems.html.",
    "zeroshot": "Play the bare model, before any demonstration: reports/zeroshot.json.",
    "warmstart": "Build and teach the base model: models/base/.",
    "gate": "Refuse a base that earns by luck at best; measure the baseline: reports/gate.json.",
    "train": "GRPO on trees under the curriculum: models/adapter/, reports/train.parquet.",
    "export": "Merge to 16 bits, reload, verify the behaviour: models/merged/.",
    "evaluate": "Compare before and after on the same held-out problems: reports/evaluation.json.",
    "plots": "Draw the figures, write the report with transcripts: reports/plots/, index.html.",
    "register": "Register a model version with its lineage in the MLflow registry.",
    "promote": "Make the challenger champion if it is proved better: reports/promotion.json.",
    "push": "Push data and models to the DVC remote.",
}
"""Stages in the order of the chain; a name is also module, command, Prefect task and run."""
DIRECT = ("deploy", "register", "promote", "push")
"""Stages that DVC does not run: they act outside the folder, or use DVC themselves."""
BY_DVC = tuple(name for name in STAGES if name not in DIRECT)
INTERRUPTED = 130
GRACE_S = 30.0
"""Seconds that an interrupted stage has to stop its server and finish its files."""


def run_stage(name: str) -> None:
    """Run one stage under its own MLflow run, with the settings in force, which it writes.

    Raises:
        PipelineError: the stage refused or failed.
    """
    from tasks import config
    from tasks.config import prepared

    if under_chain():
        die_with_parent()
    params = config.load_resolved()
    if CHAIN not in os.environ:
        config.write_resolved(params)
    set_environment(params.threads)
    from tasks.reporting import progress
    from tasks.tracking import runs

    stage = importlib.import_module(f"tasks.{name}")
    if name not in ("prepare", "push"):
        prepared.require_current(params)
    with progress.stage(name), runs.stage_run(name, params) as run:
        stage.run(params, run)


def run_measurement(model: str, base_url: str | None, say: Callable[[str], object]) -> None:
    """Play the problems of `evaluate.split` with one model under an MLflow run of its own.

    Args:
        model: registered, a folder, or the name that the endpoint knows.
        base_url: an OpenAI-compatible endpoint, if it's behind one.
        say: receives the estimate of an endpoint, and the result in one line.

    Raises:
        PipelineError: the problems are those of other settings, or the model can't be measured.
    """
    from tasks import config
    from tasks.config import prepared

    params = config.load_resolved()
    set_environment(params.threads)
    prepared.require_current(params)
    # Before a run of MLflow fails for it.
    require(paths.problems_of(params.evaluate.split), "prepare")
    from tasks import evaluate_model
    from tasks.tracking import runs

    with runs.stage_run("evaluate_model", params, title=model) as run:
        evaluate_model.measure_model(params, run, model, base_url, say)


def under_chain() -> bool:
    """Whether this process runs one stage for the chain of another process."""
    return CHAIN in os.environ and os.environ[CHAIN] != str(os.getpid())


def reproduce(name: str) -> None:
    """Reproduce one stage with DVC, which runs the command only if an input changed.

    DVC works in its own thread. So this process notices an interrupt (Ctrl-C, SIGTERM, a cancelled
    Prefect run) at once and ends the command.

    Raises:
        GateFailed: the gate refused; the message is its advice.
        ConfigError: the command found a wrong setting.
        StageError: the command failed, or DVC did.
        KeyboardInterrupt: the command was interrupted.
    """
    from dvc.exceptions import DvcException

    from tasks.push import deepest

    with ThreadPoolExecutor(1, thread_name_prefix="dvc") as executor:
        try:
            executor.submit(_reproduce, name).result()
        except DvcException as error:
            if disk_is_full(error):  # of DVC itself, which keeps the results of a stage
                raise StageError(f"{name}: {full_disk(error)}") from None
            status = exit_status(error)
            if status == GateFailed.exit_code and name == "gate":
                raise GateFailed(gate_advice()) from None
            if status == ConfigError.exit_code:
                raise ConfigError(f"{name}: a setting is wrong. See its output above.") from None
            if status in (INTERRUPTED, -2, -15):
                raise KeyboardInterrupt from None
            reason = f"exit code {status}" if status is not None else f"DVC: {deepest(error)}"
            raise StageError(f"{name}: command failed ({reason}). See its output above.") from None
        except BaseException as error:
            stop_command(name)
            if isinstance(error, OSError) and disk_is_full(error):
                raise StageError(f"{name}: {full_disk(error)}") from None
            raise


def _reproduce(name: str) -> None:
    from tasks.push import dvc_repo

    logging.getLogger("dvc").setLevel(logging.ERROR)
    with dvc_repo() as repo:
        repo.reproduce(targets=[name], single_item=True)


def unchanged(remote: str) -> list[str]:
    """The leading DVC stages whose outputs are up to date.

    Raises:
        ConfigError: there is no such remote, which only the last stage would notice.
        StageError: another DVC process works here, its files or the remote cannot be read, or
            data that you added by hand changed or is missing.
    """
    from dvc.config import RemoteNotFoundError
    from dvc.exceptions import DvcException

    from tasks.push import deepest, dvc_repo

    logging.getLogger("dvc").setLevel(logging.ERROR)
    try:
        with dvc_repo() as repo:
            repo.cloud.get_remote(remote)
            changed = repo.status()
        if added := [name for name in changed if name.endswith(".dvc")]:
            raise StageError(f"{', '.join(added)} records other data: `dvc add` or `dvc pull` it")
    except RemoteNotFoundError as error:
        raise ConfigError(f"push.remote: {error}. `dvc remote list` lists them.") from None
    except (DvcException, ImportError) as error:
        raise StageError(f"DVC status failed ({deepest(error)})") from None
    names: list[str] = []
    for name in BY_DVC:
        if name in changed:
            break
        names.append(name)
    return names


def exit_status(error: BaseException) -> int | None:
    """The exit code of a stage's command, from DVC's chain of exceptions."""
    from tasks.push import deepest

    match = re.search(r"exited with (-?\d+)$", deepest(error))
    return int(match.group(1)) if match else None


def gate_advice() -> str:
    """The gate's own report of why it refused, and what to do."""
    unknown = f"the gate refused to train, and its advice is unknown ({paths.GATE} is not readable)"
    return str(read_json(paths.GATE).get("advice", unknown))


def stop_command(name: str) -> None:
    """Terminate a stage's command that this process started; kill it after `GRACE_S` seconds."""
    import psutil

    children = psutil.Process().children(recursive=True)
    _end([p for p in children if ["flows.pipeline", name] == _read(p, "cmdline", [])[-2:]])


def stop_leftovers(chain: str) -> int:
    """End the processes that a killed chain left behind (a stage, servers); return their number.

    Args:
        chain: process id of the killed chain, which its children have in `RLM_CHAIN`. In a
            container this process may have the same id, so its own children are spared.
    """
    import psutil

    if psutil.pid_exists(int(chain)) and int(chain) != os.getpid():
        return 0  # the id belongs to a living process: the children may be its own
    own = [psutil.Process(), *psutil.Process().children(recursive=True)]
    marked = [p for p in psutil.process_iter() if _read(p, "environ", {}).get(CHAIN) == chain]
    left = [process for process in marked if process not in own]
    _end(left)
    return len(left)


def _end(processes: list[psutil.Process]) -> None:
    import psutil

    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(processes, timeout=GRACE_S)[1]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _read(process: psutil.Process, what: str, otherwise: Any) -> Any:
    import psutil

    try:
        return getattr(process, what)()
    except psutil.Error:  # it ended meanwhile, or belongs to another user
        return otherwise
