"""Stores of several hosts; a test fails with the line that installs what is missing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.cluster.stores import Postgres, S3Server, StoreMissingError, postgres, s3_server
from env import auth
from tasks import remote


@contextmanager
def s3(folder: Path) -> Iterator[S3Server]:
    """An S3 server with a bucket."""
    try:
        with s3_server(folder) as server:
            yield server
    except StoreMissingError as error:
        pytest.fail(str(error))


@contextmanager
def database(folder: Path, *names: str) -> Iterator[Postgres]:
    """A PostgreSQL server with databases; its user may enter the folder."""
    for parent in [folder, *folder.parents][: len(folder.parts) - 2]:
        if parent.exists() and os.access(parent, os.W_OK):
            parent.chmod(parent.stat().st_mode | 0o011)
    try:
        with postgres(folder, names) as server:
            yield server
    except StoreMissingError as error:
        pytest.fail(str(error))


def use(patch: pytest.MonkeyPatch, server: S3Server, prefix: str) -> None:
    """Let the shared store of this process be a prefix of the bucket."""
    for name, value in server.environment.items():
        patch.setenv(name, value)
    patch.setenv(auth.REMOTE, f"s3://rlm/{prefix}")
    patch.delenv(auth.FENCE, raising=False)
    remote.opened.cache_clear()
