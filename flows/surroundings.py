"""What every command sets before heavy libraries are imported: telemetry off, quiet, threads.

Called at command start and by the flow, never on import. Values that the user already set in the
environment win.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import warnings
from pathlib import Path

QUIET = {
    # Telemetry: off everywhere unless the user turned it on.
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DVC_NO_ANALYTICS": "1",
    "GX_ANALYTICS_ENABLED": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Readable output: warnings of libraries that nobody here can act on.
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "BITSANDBYTES_NOWELCOME": "1",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # A server that is gone is noticed after 15 s, not after four minutes. prefect.toml: the same.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    # Each event that a server which is gone did not take, in full: `flows/notices.py` says it once.
    "PREFECT_INTERNAL_LOGGING_LEVEL": "CRITICAL",
    # A cold start on a busy laptop takes Prefect's own server up to 45 s.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    # Waiting threads sleep: the environment's server shares the cores.
    "OMP_WAIT_POLICY": "PASSIVE",
}


def settle(threads: int | None = None) -> None:
    """Set the process's environment; child processes inherit it.

    Args:
        threads: CPU threads of torch and BLAS; must come before they are imported.
    """
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    if threads is not None:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def outlive_worker(log: Path) -> None:
    """Have a flow that a Prefect worker started, and its stages, print to a file from now on.

    Through the worker, the first line after its death would end the run (prefect.yaml).
    """
    if "PREFECT__FLOW_RUN_ID" not in os.environ:
        return
    with log.open("wb") as stream:
        os.dup2(stream.fileno(), sys.stdout.fileno())
        os.dup2(stream.fileno(), sys.stderr.fileno())


def die_with_parent() -> None:
    """Have the kernel send this process SIGTERM when its parent dies, even by SIGKILL (Linux)."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
