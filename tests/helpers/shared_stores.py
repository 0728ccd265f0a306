"""PostgreSQL and an S3 server that hosts share; a test fails with the line that installs them."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from env import variables
from flows.services.processes import answers, free_port
from helpers.hosts import BUCKET
from helpers.sandbox_events import wait_for
from tasks.shared import remote

INSTALL = "Install: apt-get install -y postgresql; make setup-cluster"


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
        run([program("pg_ctl"), "-D", str(self.folder / "data"), *arguments])


@contextmanager
def database(*names: str) -> Iterator[Postgres]:
    """A server with a user `rlm` and databases, in a folder of its own that its user may enter.

    Another run of pytest would close pytest's folder to other users.
    """
    try:
        import psycopg
    except ImportError:
        pytest.fail(f"psycopg is missing. {INSTALL}")
    with TemporaryDirectory(prefix="rlm-postgres-") as folder:
        password = "pw-" + os.urandom(8).hex()
        server = Postgres(Path(folder) / "pg", free_port(), password)
        server.folder.mkdir()
        file = server.folder / "password"
        file.write_text(password)
        Path(folder).chmod(0o755)
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            for path in (server.folder, file):
                shutil.chown(path, user())
        run(
            [
                *(program("initdb"), "-D", str(server.folder / "data"), "-U", "rlm"),
                *("-A", "scram-sha-256", "-E", "UTF8", "--no-sync", f"--pwfile={file}"),
            ]
        )
        server.start()
        try:
            admin = server.url("psycopg", "postgres").replace("+psycopg", "")
            with psycopg.connect(admin, autocommit=True) as connection:
                for name in names:
                    connection.execute(f'CREATE DATABASE "{name}"'.encode())
            yield server
        finally:
            server.stop()


def program(name: str) -> str:
    """Path of a program of PostgreSQL."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ["PATH"]]))
    if found is None:
        pytest.fail(f"{name} of PostgreSQL is missing. {INSTALL}")
    return str(Path(found).resolve())


def user() -> str:
    """Ordinary user that runs the server when this process is root."""
    known = [entry.pw_name for entry in pwd.getpwall()]
    return "postgres" if "postgres" in known else "nobody"


def run(command: list[str]) -> None:
    done = subprocess.run(
        command,
        user=user() if os.getuid() == 0 else None,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert not done.returncode, f"{command[0]} failed: {done.stdout[-1000:]}"


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
def s3(folder: Path) -> Iterator[S3Server]:
    """A moto server, which keeps its objects in memory; it checks keys and conditional writes."""
    try:
        import boto3
        import moto  # noqa: F401
    except ImportError:
        pytest.fail(f"moto is missing. {INSTALL}")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with (folder / "s3.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        up = wait_for(lambda: answers(f"{url}/moto-api/data.json"), 60)
        assert up, f"moto does not answer: see {folder / 's3.log'}"
        first = boto3.session.Session("any", "any", region_name="us-east-1")
        iam = first.client("iam", endpoint_url=url)
        iam.create_user(UserName="rlm")
        allowed = {"Effect": "Allow", "Action": "*", "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": allowed})
        iam.put_user_policy(UserName="rlm", PolicyName="all", PolicyDocument=policy)
        key = iam.create_access_key(UserName="rlm")["AccessKey"]
        first.client("s3", endpoint_url=url).create_bucket(Bucket=BUCKET)
        httpx.post(f"{url}/moto-api/reset-auth", content="0").raise_for_status()
        yield S3Server(process, url, key["AccessKeyId"], key["SecretAccessKey"])
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=30)


def use(patch: pytest.MonkeyPatch, server: S3Server, prefix: str) -> None:
    """Let the shared store of this process be a prefix of the bucket."""
    for name, value in server.environment.items():
        patch.setenv(name, value)
    patch.setenv(variables.REMOTE, f"s3://rlm/{prefix}")
    patch.delenv(variables.FENCE, raising=False)
    remote.opened.cache_clear()
