"""The process that runs a chain: the lock of its folder, and the settings of libraries.

Commands and flows call `set_environment` before they import heavy libraries, not on import. A
value that the user set in the environment wins. `env/variables.py` lists the project's own
variables.
"""

from __future__ import annotations

import ctypes
import fcntl
import getpass
import logging
import os
import platform
import re
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import getproxies

from env import variables
from tasks import paths
from tasks.errors import StageError
from tasks.io import remove_unfinished

LOCK = paths.RUN / "chain.lock"
PRINTED = paths.RUN / "flow.log"
"""Output of the last run that a Prefect worker started."""

QUIET = {
    # Telemetry: off everywhere unless the user turned it on.
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DVC_NO_ANALYTICS": "1",
    "GX_ANALYTICS_ENABLED": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    # Readable output: no library warnings that a user cannot act on.
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # Notice a lost server after 15 s, not after four minutes; prefect.toml does the same.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    # The pages of flow runs show lines of the stages; the terminal shows them itself.
    "PREFECT_LOGGING_LOGGERS_PREFECT_FLOW_RUNS_LEVEL": "INFO",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "agent,env,flows,tasks",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    # Prefect prints each event that it cannot deliver; notifications.py warns once.
    "PREFECT_INTERNAL_LOGGING_LEVEL": "CRITICAL",
    # As Unsloth does: otherwise, batches of many sizes leave holes in a card's memory.
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    # Waiting threads soon sleep, since the environment's server shares the cores. Without any
    # spinning, a step of the warm start takes half as long again.
    "GOMP_SPINCOUNT": "20000",
    # Beside each block that torch takes, glibc frees two splinters, and its caches keep them from
    # being joined to the block again. So the heap breaks up: after 300 steps of SmolLM2's warm
    # start, the search for a free block takes 40 % of the time (docs/measurements.md).
    # `set_environment` empties the other cache: children inherit only this variable's first part.
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
}


def set_environment(threads: int | None = None) -> None:
    """Set the process's environment; child processes inherit it.

    Args:
        threads: CPU threads of torch and BLAS; effective only before they are imported.
    """
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    if threads is not None:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    # No proxy leads to this machine's own servers; httpx reads no brackets around an address.
    off = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    own = ("127.0.0.1", "localhost", os.environ.get(variables.SERVICES_HOST, ""))
    hosts = filter(None, [*re.sub(r"[\[\]]", "", off).split(","), *own])
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys(hosts))
    if getproxies().keys() - {"no"}:
        _require_readable_proxies()
    try:
        Path.home(), getpass.getuser()
    except (RuntimeError, KeyError, OSError):  # a container's user without a name
        os.environ.setdefault("HOME", str(paths.RUN.resolve()))
        os.environ.setdefault("USER", f"uid-{os.getuid()}")
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # no terminal, pipe or file
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    with suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).mallopt(1, 0)  # M_MXFAST
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def _require_readable_proxies() -> None:
    import httpx

    try:
        httpx.Client().close()
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        wrong = "error: ALL_PROXY, HTTPS_PROXY or HTTP_PROXY can't be used"
        sys.exit(f"{wrong} ({str(error).rstrip('.')}). Correct or unset it.")


def outlive_worker(log: Path) -> None:
    """If a Prefect worker started this flow, redirect its output and its stages' to a file.

    Otherwise the first line printed after the worker's death would end the run (prefect.yaml).
    """
    if "PREFECT__FLOW_RUN_ID" not in os.environ:
        return
    with log.open("wb") as stream:
        os.dup2(stream.fileno(), sys.stdout.fileno())
        os.dup2(stream.fileno(), sys.stderr.fileno())
    for handler in logging.getLogger().handlers:
        handler.setLevel(logging.WARNING)  # the lines for Prefect's page are printed, too


def die_with_parent() -> None:
    """Have the kernel send this process SIGTERM when its parent dies, even by SIGKILL (Linux)."""
    if sys.platform == "linux":
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def unwrapped(doc: str | None) -> str:
    """A docstring as help text: each paragraph on one line; indented examples stay as they are."""
    return re.sub(r"(?<!\n)\n(?=[^\s])", " ", doc or "")


class BusyError(StageError):
    """Another run works in this folder."""


@contextmanager
def exclusive(wait_s: float = 0.0) -> Iterator[None]:
    """Hold the lock of this folder; the kernel releases it when the process dies.

    The output of a run that a Prefect worker started goes to `PRINTED` from here on.

    Args:
        wait_s: seconds to wait for another run to end.

    Raises:
        BusyError: another run still holds the lock.
    """
    paths.RUN.mkdir(exist_ok=True)
    deadline = time.monotonic() + wait_s
    with LOCK.open("a+") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.5)
                    continue
            handle.seek(0)
            waited = f" after a wait of {wait_s:g} s" if wait_s else ""
            raise BusyError(
                f"another run works in this folder (process {handle.read() or 'unknown'})"
                f"{waited}. Wait for it, or stop it with Ctrl-C or SIGTERM."
            )
        handle.truncate(0)
        handle.write(f"{os.getpid()} on {platform.node()}")
        handle.flush()
        remove_unfinished(paths.BASE, paths.BARE, paths.TRAINED, paths.MERGED)
        outlive_worker(PRINTED)
        yield
