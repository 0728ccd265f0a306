"""PostgreSQL and an S3 server in a folder, for `benchmarks.cluster` and for tests."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from flows.services.processes import free_port

BUCKET = "rlm"
INSTALL = "apt-get install -y postgresql; make setup-cluster"


class StoreMissingError(RuntimeError):
    """A program that the stores need is not installed."""


@dataclass
class Postgres:
    """A PostgreSQL server whose users need a password."""

    folder: Path
    port: int
    password: str

    def url(self, driver: str, database: str) -> str:
        """Address of a database for SQLAlchemy."""
        return f"postgresql+{driver}://rlm:{self.password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server; returns when it answers."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.folder}"
        log = str(self.folder / "postgres.log")
        self._control("-w", "-l", log, "-o", options, "start")

    def stop(self) -> None:
        """Stop the server at once; clients lose their connections."""
        self._control("-w", "-m", "fast", "stop")

    def _control(self, *arguments: str) -> None:
        _run([program("pg_ctl"), "-D", str(self.folder / "data"), *arguments])


@contextmanager
def postgres(folder: Path, databases: Sequence[str]) -> Iterator[Postgres]:
    """A server with a user `rlm` and its databases, in a folder that others may enter.

    Raises:
        StoreMissingError: PostgreSQL or its client is not installed.
    """
    try:
        import psycopg
    except ImportError:
        raise StoreMissingError(f"psycopg is missing. Install: {INSTALL}") from None
    password = "pw-" + os.urandom(8).hex()
    server = Postgres(folder, free_port(), password)
    folder.mkdir(parents=True)
    (folder / "password").write_text(password)
    if os.getuid() == 0:  # PostgreSQL refuses to run as root
        for path in (folder, folder / "password"):
            shutil.chown(path, _user())
    _run(
        [
            *(program("initdb"), "-D", str(folder / "data"), "-U", "rlm", "-A", "scram-sha-256"),
            *("-E", "UTF8", "--no-sync", f"--pwfile={folder / 'password'}"),
        ]
    )
    server.start()
    try:
        admin = server.url("psycopg", "postgres").replace("+psycopg", "")
        with psycopg.connect(admin, autocommit=True) as connection:
            for name in databases:
                connection.execute(f'CREATE DATABASE "{name}"'.encode())
        yield server
    finally:
        server.stop()


def program(name: str) -> str:
    """Path of a program of PostgreSQL.

    Raises:
        StoreMissingError: it is not installed.
    """
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ["PATH"]]))
    if found is None:
        raise StoreMissingError(f"{name} of PostgreSQL is missing. Install: {INSTALL}")
    return str(Path(found).resolve())


def _user() -> str:
    """Ordinary user that runs the server when this process is root."""
    known = [entry.pw_name for entry in pwd.getpwall()]
    return "postgres" if "postgres" in known else "nobody"


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command,
        user=_user() if os.getuid() == 0 else None,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stdout[-1000:]}")


@dataclass
class S3Server:
    """An S3 server with one bucket, which knows one key."""

    process: subprocess.Popen[bytes]
    url: str
    key: str
    secret: str

    @property
    def environment(self) -> dict[str, str]:
        """Variables of its clients."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
        }


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """A moto server, which keeps its objects in memory; it checks keys and conditional writes.

    Raises:
        StoreMissingError: moto is not installed.
    """
    try:
        import boto3
        import moto  # noqa: F401
    except ImportError:
        raise StoreMissingError(f"moto is missing. Install: {INSTALL}") from None
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "s3.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 60
        while not _answers(f"{url}/moto-api/data.json"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"moto did not start. See {folder / 's3.log'}.")
            time.sleep(0.2)
        first = boto3.session.Session("any", "any", region_name="us-east-1")
        iam = first.client("iam", endpoint_url=url)
        iam.create_user(UserName="rlm")
        allowed = '{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", '
        iam.put_user_policy(
            UserName="rlm", PolicyName="all", PolicyDocument=allowed + '"Resource": "*"}}'
        )
        key = iam.create_access_key(UserName="rlm")["AccessKey"]
        first.client("s3", endpoint_url=url).create_bucket(Bucket=BUCKET)
        httpx.post(f"{url}/moto-api/reset-auth", content="0").raise_for_status()
        yield S3Server(process, url, key["AccessKeyId"], key["SecretAccessKey"])
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0).is_success
    except httpx.HTTPError:
        return False
