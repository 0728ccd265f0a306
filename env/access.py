"""Addresses and secrets of the environment: the environment variables that carry them.

A client finds its server by `RLM_ENV_URL`; `RLM_ENV_TOKEN` opens a private Space and goes to that
address alone. The others are a server's, whose files everybody can read: where its problems are.
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
SEED = "RLM_PROBLEM_SEED"
"""Secret: the server generates its problems from it."""
DATASET = "RLM_DATASET"
"""A private data set on the Hub that holds the server's problems."""
DATASET_REVISION = "RLM_DATASET_REVISION"
DATASET_TOKEN = "RLM_DATASET_TOKEN"
"""Secret: a token that may read that data set, and needs no other right."""

_SECURE = {"https": "https", "wss": "https", "http": "http", "ws": "http"}


def headers(url: str) -> dict[str, str]:
    """What a request to `url` must carry; nothing unless it goes to `RLM_ENV_URL`."""
    token, address = os.environ.get(TOKEN), os.environ.get(URL)
    if not token or not address or _origin(url) != _origin(address):
        return {}
    # This library writes every header of a connection into its log when that is set to DEBUG.
    logging.getLogger("websockets.client").addFilter(_without_tokens)
    return {"Authorization": f"Bearer {token}"}


@contextmanager
def addressed(url: str, token: str | None) -> Iterator[None]:
    """Let clients in this process and its children find the server, while the block lasts."""
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
