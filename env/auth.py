"""The project's environment variables, and the secrets that some of them carry.

`VARIABLES` is the one table of their names; every reader imports its name from here. A secret is
never written to a file: a client sends `RLM_ENV_TOKEN` to the address in `RLM_ENV_URL` alone.
Imports nothing heavy.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

URL = "RLM_ENV_URL"
TOKEN = "RLM_ENV_TOKEN"
SETTINGS = "RLM_SETTINGS"
DATA = "RLM_DATA"
SEED = "RLM_PROBLEM_SEED"
DATASET = "RLM_DATASET"
DATASET_REVISION = "RLM_DATASET_REVISION"
DATASET_TOKEN = "RLM_DATASET_TOKEN"
MLFLOW_PORT = "RLM_MLFLOW_PORT"
CHAIN = "RLM_CHAIN"
PARENT_RUN = "RLM_PARENT_RUN_ID"
VARIABLES = {
    URL: "Address of a running environment server; without it the stages start their own.",
    TOKEN: "Secret: token that opens the private Space at `RLM_ENV_URL`.",
    SETTINGS: "Settings file (YAML) of an environment server; without it the defaults hold.",
    DATA: "Folder of the server's problems (Parquet); empty: generate them from the settings.",
    SEED: "Secret: seed from which the server generates its problems.",
    DATASET: "Private data set on the Hub that holds the server's problems.",
    DATASET_REVISION: "Branch, tag or commit of that data set; `main` without it.",
    DATASET_TOKEN: "Secret: token that can read that data set, and needs no other right.",
    MLFLOW_PORT: "Port of the MLflow server that `make up` starts; 5000 without it.",
    CHAIN: "Set by the chain: its process id, which all its child processes inherit.",
    PARENT_RUN: "Set by the chain: its MLflow run, the parent of the stages' runs.",
}
"""Meaning of each variable; docs/commands.md lists them."""

_SECURE = {"https": "https", "wss": "https", "http": "http", "ws": "http"}


def headers(url: str) -> dict[str, str]:
    """Headers of a request to `url`: the token, if `url` has the origin of `RLM_ENV_URL`."""
    token, address = os.environ.get(TOKEN), os.environ.get(URL)
    if not token or not address or _origin(url) != _origin(address):
        return {}
    # At level DEBUG this library logs every header of a connection.
    logging.getLogger("websockets.client").addFilter(_without_tokens)
    return {"Authorization": f"Bearer {token}"}


@contextmanager
def addressed(url: str, token: str | None) -> Iterator[None]:
    """Let clients in this process and its children find the server inside the block."""
    before = {name: os.environ.get(name) for name in (URL, TOKEN)}
    os.environ[URL] = url
    if token:
        os.environ[TOKEN] = token
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _without_tokens(record: logging.LogRecord) -> bool:
    return "authorization" not in record.getMessage().lower()


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return _SECURE.get(parts.scheme, parts.scheme), parts.netloc
