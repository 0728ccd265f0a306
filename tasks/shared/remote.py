"""The store that several hosts share: a place in S3 with the DVC remote and checkpoints.

`RLM_REMOTE` names the place, such as `s3://bucket/rlm`; without it nothing here connects. Keys and
the server's address come from the variables of AWS's tools: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL. `tasks/shared/holder.py` says which run may write.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from env import variables
from tasks.errors import ConfigError, StageError

if TYPE_CHECKING:
    from dvc.repo import Repo

NAME = "shared"
"""Name of the DVC remote at `RLM_REMOTE`; it is in no file."""
UNCONDITIONAL = (
    "this server does not check conditions of writes (If-Match, If-None-Match), so a replaced run "
    "could write. Use AWS, MinIO or another server that does."
)


class RecordChangedError(Exception):
    """An object is not what the writer last read."""


def address() -> str | None:
    """Address of the shared store; None if this host works alone.

    Raises:
        ConfigError: it is not an address in S3.
    """
    found = os.environ.get(variables.REMOTE, "").rstrip("/")
    if found and not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]+(/[\w./-]+)?", found):
        raise ConfigError(
            f"{variables.REMOTE} is not an address in S3. Write it as s3://BUCKET/PREFIX."
        )
    return found or None


@contextmanager
def repository() -> Iterator[Repo]:
    """The DVC repository of this folder; its default remote is the shared store, if one is set."""
    from dvc.repo import Repo

    place = address()
    # `verify`: another host may have replaced an object by one with other content.
    shared = {NAME: {"url": place, "verify": True}}
    over = {"core": {"remote": NAME}, "remote": shared} if place else None
    with Repo(".", config=over) as repo:
        yield repo


@contextmanager
def lost(what: str) -> Iterator[None]:
    """Turn the errors of DVC's client of S3 into one message.

    Args:
        what: what could not be done, for the message.

    Raises:
        StageError: the store does not answer, or refuses.
    """
    try:
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:  # then no store is shared
        yield
        return
    try:
        yield
    except (BotoCoreError, ClientError, OSError) as error:
        # DVC's client makes an OSError of an answer; others are of this folder.
        if isinstance(error, OSError) and not isinstance(error.__cause__, ClientError):
            raise
        raise StageError(
            f"{what} ({address()}: {type(error).__name__}). Run the same command again when the "
            "store answers: finished stages are kept."
        ) from None


def push_stage(repo: Repo, stage: str, check: Callable[[], None]) -> None:
    """Push the outputs of a stage and the record of its run, which another host looks for.

    Args:
        repo: the repository of this folder.
        stage: its name.
        check: raises an error if this run may not write. It is called before each part: the first
            may take minutes, but only the record makes the outputs known to others.

    Raises:
        StageError: the store does not accept them.
    """
    from dvc.exceptions import DvcException
    from dvc.stage.serialize import to_single_stage_lockfile

    what = f"{stage}: done here, but its result could not be pushed"
    try:
        with lost(what):
            ran = repo.stage.load_one(name=stage)
            # DVC itself neither records nor pushes outputs that it does not keep (`cache: false`).
            repo.stage_cache.save(ran)
            record = repo.stage_cache._create_stage(to_single_stage_lockfile(ran), ran.wdir)
            check()
            for objects in record.get_used_objs().values():
                if failed := repo.cloud.push(objects, remote=NAME).failed:
                    raise OSError(f"{len(failed)} files failed")
            check()
            repo.stage_cache.push(NAME)
    except (DvcException, OSError) as error:
        raise StageError(f"{what} ({address()}: {error}). Run the same command again.") from None


@cache
def opened(place: str, variable: str = variables.REMOTE) -> SharedStore:
    """The store at an address; nothing is sent yet.

    Args:
        place: address in S3.
        variable: variable that holds it, for messages.

    Raises:
        ConfigError: boto3 is not installed.
    """
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise ConfigError(
            f"{variable} needs the extra s3. Install it: "
            'pip install --constraint constraints.txt --editable ".[s3]"'
        ) from None
    settings = Config(connect_timeout=5, read_timeout=60, retries={"total_max_attempts": 4})
    bucket, _, prefix = place.removeprefix("s3://").partition("/")
    client = boto3.session.Session().client("s3", config=settings)
    return SharedStore(client, bucket, prefix and f"{prefix}/", variable)


def store() -> SharedStore:
    """The store that `RLM_REMOTE` names."""
    return opened(str(address()))


@dataclass(frozen=True)
class SharedStore:
    """Objects below a prefix of a bucket.

    Every method raises ConfigError for a refused key or a missing bucket, and StageError for a
    server that does not answer.
    """

    client: Any
    bucket: str
    prefix: str
    variable: str
    """Variable that holds its address, for messages."""

    def read(self, name: str) -> tuple[dict[str, Any] | None, str | None]:
        """A JSON object and its version; two None if it does not exist."""
        with self._answering():
            try:
                found = self.client.get_object(Bucket=self.bucket, Key=self.prefix + name)
            except self.client.exceptions.NoSuchKey:
                return None, None
            return json.loads(found["Body"].read()), found["ETag"]

    def write(self, name: str, data: dict[str, Any], version: str | None) -> None:
        """Write a JSON object if the stored one still has a version; None: if none is stored.

        Raises:
            RecordChangedError: another process wrote it meanwhile.
        """
        condition = {"IfMatch": version} if version else {"IfNoneMatch": "*"}
        with self._answering():
            self.client.put_object(
                Bucket=self.bucket,
                Key=self.prefix + name,
                Body=json.dumps(data, indent=2).encode(),
                **condition,
            )

    def upload(self, folder: Path, name: str) -> None:
        """Copy the files of a folder below a name."""
        with self._answering():
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    key = f"{self.prefix}{name}/{path.relative_to(folder).as_posix()}"
                    self.client.upload_file(str(path), self.bucket, key)

    def download(self, name: str, folder: Path) -> None:
        """Copy the objects below a name into a folder."""
        with self._answering():
            for key in self._keys(f"{name}/"):
                inside = key.removeprefix(f"{self.prefix}{name}/")
                if inside.startswith("/") or ".." in inside.split("/"):
                    raise StageError(f"{key!r} in {self.bucket} leads out of a folder. Delete it.")
                path = folder / inside
                path.parent.mkdir(parents=True, exist_ok=True)
                self.client.download_file(self.bucket, key, str(path))

    def delete(self, name: str, chosen: Callable[[str], bool]) -> None:
        """Delete chosen folders below a name.

        Args:
            name: the name.
            chosen: whether to delete a folder, by its own name.
        """
        with self._answering():
            for key in self._keys(f"{name}/"):
                if chosen(key.removeprefix(f"{self.prefix}{name}/").partition("/")[0]):
                    self.client.delete_object(Bucket=self.bucket, Key=key)

    def _keys(self, below: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=self.prefix + below
        )
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Turn the client's errors into one message; keys are never part of it."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        where = f"{self.variable} ({f's3://{self.bucket}/{self.prefix}'.rstrip('/')})"
        try:
            yield
        except ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            if status in (409, 412):
                raise RecordChangedError from None
            if status == 501:
                raise ConfigError(f"{where}: {UNCONDITIONAL}") from None
            kind = StageError if status >= 500 else ConfigError
            raise kind(
                f"{where}: {error}. Check the bucket, the key and its rights, and the clock of "
                "this host, then run the same command again."
            ) from None
        except (BotoCoreError, Boto3Error, OSError) as error:
            raise StageError(
                f"{where} cannot be used ({type(error).__name__}). Check AWS_ENDPOINT_URL, the "
                "keys and the server, then run the same command again: finished stages are kept."
            ) from None
