"""Stores of several hosts; a test fails with the line that installs what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

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
def database(*names: str) -> Iterator[Postgres]:
    """A PostgreSQL server with databases, in a folder of its own that its user may enter.

    Another run of pytest would close pytest's folder to other users.
    """
    with TemporaryDirectory(prefix="rlm-postgres-") as folder:
        Path(folder).chmod(0o755)
        try:
            with postgres(Path(folder) / "pg", names) as server:
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
