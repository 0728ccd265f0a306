"""The stages by name: what each does, how one runs, and how DVC is asked for one.

Prefect decides when, DVC decides whether, MLflow remembers. Neighbours: `flows/chain.py` strings
the stages together, `flows/pipeline.py` is the command line.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.surroundings import die_with_parent, settle
from tasks.errors import ConfigError, GateFailed, StageError

if TYPE_CHECKING:
    import psutil

STAGES = {
    "prepare": "Make the problems: data/problems/.",
    "validate": "Check them with Great Expectations: reports/data_docs/.",
    "deploy": "Start the environment, smoke-test it over the wire: reports/deployment.json.",
    "audit": "Known gold, keyword search, random code on the problems: reports/problems.html.",
    "warmstart": "Build and teach the base model: models/base/.",
    "gate": "Refuse a base that never earns a reward; measure the baseline: reports/gate.json.",
    "train": "GRPO on trees under the curriculum: models/adapter/, reports/train.parquet.",
    "export": "Merge to 16 bits, reload, prove it still behaves: models/merged/.",
    "evaluate": "Before and after on the same held-out problems: reports/evaluation.json.",
    "plots": "Figures and the report with transcripts: plots/, reports/index.html.",
    "register": "A model version with its lineage in the MLflow registry.",
    "promote": "The challenger becomes champion if it is proved better: reports/promotion.json.",
    "version": "Push data and models to the DVC remote.",
}
"""Every stage in the order of the chain; a name is also module, command, Prefect task and run."""
DIRECT = ("deploy", "register", "promote", "version")
"""No DVC stages: they change the world outside the folder, or need DVC themselves."""
BY_DVC = tuple(name for name in STAGES if name not in DIRECT)
CHAIN = "RLM_CHAIN"
"""Environment variable: the process that plays the chain; all that it starts inherits it."""
GATE = Path("reports/gate.json")
INTERRUPTED = 130
GRACE_S = 30.0
"""Seconds that an interrupted stage gets to stop its server and its files."""


def run_stage(name: str) -> None:
    """One stage under its own MLflow run, with the settings of params.resolved.yaml.

    Raises:
        PipelineError: the stage refused or failed, with one clear message.
    """
    from tasks import config

    if under_chain():
        die_with_parent()
    params = config.load_resolved()
    settle(params.threads)
    from tasks import tracking

    stage = importlib.import_module(f"tasks.{name}")
    with tracking.stage_run(name, params) as run:
        stage.run(params, run)


def under_chain() -> bool:
    """Whether this process runs one stage of a chain that another process strings together."""
    return CHAIN in os.environ and os.environ[CHAIN] != str(os.getpid())


def reproduce(name: str) -> None:
    """Ask DVC for one stage; it runs the stage's command only if something it reads changed.

    DVC works in a thread of its own, so that an interrupt of this process (Ctrl-C, SIGTERM, a
    cancelled Prefect run) is noticed at once and handed on to the command.

    Raises:
        GateFailed: the gate refused; the message is its advice.
        ConfigError: the command says that a setting is wrong.
        StageError: the command failed; the message says why, where it is known.
        KeyboardInterrupt: the command was interrupted.
    """
    from dvc.exceptions import DvcException

    with ThreadPoolExecutor(1, thread_name_prefix="dvc") as executor:
        work = executor.submit(_reproduce, name)
        try:
            work.result()
        except DvcException as error:
            status = exit_status(error)
            if status == GateFailed.exit_code and name == "gate":
                raise GateFailed(gate_advice()) from None
            if status == ConfigError.exit_code:
                raise ConfigError(f"{name}: a setting is wrong; see its output above") from None
            if status in (INTERRUPTED, -2, -15):
                raise KeyboardInterrupt from None
            reason = (
                f"its command ended with exit code {status}"
                if status is not None
                else f"DVC says: {deepest(error)}"
            )
            raise StageError(f"{name}: {reason}; see its output above") from None
        except BaseException:
            stop_command(name)
            raise


def _reproduce(name: str) -> None:
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(logging.ERROR)
    with Repo(".") as repo:
        repo.reproduce(targets=[name], single_item=True)


def unchanged() -> list[str]:
    """The DVC stages, from the first on, whose outputs still fit what they were made from.

    Raises:
        StageError: another process of DVC works here, or what it keeps cannot be read.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(logging.ERROR)
    try:
        with Repo(".") as repo:
            changed = repo.status()
    except DvcException as error:
        raise StageError(f"DVC cannot say what changed: {deepest(error)}") from None
    kept: list[str] = []
    for name in BY_DVC:
        if name in changed:
            break
        kept.append(name)
    return kept


def exit_status(error: BaseException) -> int | None:
    """The exit code of a stage's command, from DVC's chain of exceptions."""
    found = re.search(r"exited with (-?\d+)$", deepest(error))
    return int(found.group(1)) if found else None


def deepest(error: BaseException) -> str:
    """The message at the bottom of a chain of causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)


def gate_advice() -> str:
    """Why the gate refused, and what to do, as it wrote it."""
    try:
        told = json.loads(GATE.read_text(encoding="utf-8"))
        return str(told["advice"])
    except (OSError, ValueError, KeyError):
        return f"the gate refused to train; {GATE} is not readable, so its advice is unknown"


def stop_command(name: str) -> None:
    """End a stage's command that this process started; kill it after `GRACE_S` seconds."""
    import psutil

    children = psutil.Process().children(recursive=True)
    _end([p for p in children if ["flows.pipeline", name] == _read(p, "cmdline", [])[-2:]])


def stop_leftovers(chain: str) -> int:
    """End what a killed chain left running (a stage, servers); returns how many there were.

    Args:
        chain: the killed chain's process id, as its children carry it in `RLM_CHAIN`. In a
            container it may be ours too, so what this process started is left alone.
    """
    import psutil

    if psutil.pid_exists(int(chain)) and int(chain) != os.getpid():
        return 0  # the number belongs to a living process: nothing here is certain
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
    except psutil.Error:  # it ended in between, or belongs to someone else
        return otherwise
