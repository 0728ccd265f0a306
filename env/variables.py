"""The project's environment variables, and the secrets that some of them carry.

Every reader imports a variable's name from here. A secret is never written to a file: a client
sends `RLM_ENV_TOKEN` and `RLM_ENV_OWNER_KEY` to the address in `RLM_ENV_URL` alone. Imports nothing
heavy.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from env.errors import SettingsError

URL = "RLM_ENV_URL"
"""Address of a running environment server; without it the stages start their own."""
TOKEN = "RLM_ENV_TOKEN"
"""Secret: token that opens the private Space at `RLM_ENV_URL`."""
OWNER_KEY = "RLM_ENV_OWNER_KEY"
"""Secret: key that opens every split, with exact figures, where `env.splits` is set."""
SETTINGS = "RLM_SETTINGS"
"""Settings file (YAML) of an environment server; without it the defaults hold."""
DATA = "RLM_DATA"
"""Folder of the server's problems (Parquet); empty: generate them from the settings."""
SEED = "RLM_PROBLEM_SEED"
"""Secret: seed from which the server generates its problems."""
DATASET = "RLM_DATASET"
"""Private data set on the Hub that holds the server's problems."""
DATASET_REVISION = "RLM_DATASET_REVISION"
"""Branch, tag or commit of that data set; `main` without it."""
DATASET_TOKEN = "RLM_DATASET_TOKEN"
"""Secret: token that can read that data set, and needs no other right."""
MLFLOW_PORT = "RLM_MLFLOW_PORT"
"""Port of the MLflow server that `make up` starts; 5000 without it."""
PREFECT_PORT = "RLM_PREFECT_PORT"
"""Port of its Prefect server; 4200 without it. PREFECT_API_URL must name it too."""
SERVICES_HOST = "RLM_SERVICES_HOST"
"""Address that the servers of `make up` listen on; 127.0.0.1 without it."""
WORKER_KEYS = "RLM_WORKER_KEYS"
"""Names, with commas between, of the keys that the worker of `make up` gets; none without it."""
CHAIN = "RLM_CHAIN"
"""Set by the chain: its process id, which all its child processes inherit."""
PARENT_RUN = "RLM_PARENT_RUN_ID"
"""Set by the chain: its MLflow run, the parent of the stages' runs."""

KEYS = ("_KEY", "_KEY_ID", "_TOKEN", "_PASSWORD", "_SECRET", "_AUTH_STRING")
ADDRESSES = ("_URI", "_URL")
"""Ends of names of others' keys and addresses. A server of the environment, which runs what a model
writes, has no use for them."""
KEY_CHARS = 32
"""Least length of a key of a server: anyone may try keys."""

_SECURE = {"https": "https", "wss": "https", "http": "http", "ws": "http"}
_SECRETS = ("authorization", "owner_key", '"reset"')
"""Words of log records that may contain a secret: headers, and messages with the owner's key."""


def python_path() -> str:
    """PYTHONPATH of processes that run this project's code: its root before the present entries."""
    root = str(Path(__file__).resolve().parents[1])
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))


def headers(url: str) -> dict[str, str]:
    """Headers of a request to `url`: the token, if `url` has the origin of `RLM_ENV_URL`."""
    token = os.environ.get(TOKEN)
    if not token or not _is_named(url):
        return {}
    hide_secrets("websockets.client")
    return {"Authorization": f"Bearer {token}"}


def owner_key(url: str) -> dict[str, str]:
    """Argument of `reset` that shows the owner's key, if `url` has the origin of `RLM_ENV_URL`."""
    key = os.environ.get(OWNER_KEY)
    if not key or not _is_named(url):
        return {}
    hide_secrets("websockets.client")
    return {"owner_key": key}


def read_key(name: str, environ: Mapping[str, str]) -> str | None:
    """Key in a variable; None without one.

    Raises:
        SettingsError: it is short enough to be guessed.
    """
    key = environ.get(name) or None
    if key is not None and len(key) < KEY_CHARS:
        raise SettingsError(
            f"{name} has fewer than {KEY_CHARS} characters. Set it to the output of "
            '`python -c "import secrets; print(secrets.token_urlsafe(32))"`.'
        )
    return key


def hide_secrets(logger: str) -> None:
    """Drop the log records that may contain secrets: at DEBUG, libraries log whole messages."""
    logging.getLogger(logger).addFilter(_without_secrets)


@contextmanager
def addressed(url: str, token: str | None, key: str | None = None) -> Iterator[None]:
    """Let clients in this process and its children find and open the server inside the block."""
    values = {URL: url, TOKEN: token, OWNER_KEY: key}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: value for name, value in values.items() if value})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _without_secrets(record: logging.LogRecord) -> bool:
    message = record.getMessage().lower()
    return not any(word in message for word in _SECRETS)


def _is_named(url: str) -> bool:
    """Whether `url` has the origin of `RLM_ENV_URL`."""
    address = os.environ.get(URL)
    return bool(address) and _origin(url) == _origin(str(address))


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return _SECURE.get(parts.scheme, parts.scheme), parts.netloc
