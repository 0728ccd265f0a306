"""Several servers of this machine behind HAProxy, for `deploy.replicas`.

A session is one WebSocket connection, so HAProxy keeps it at its server, and clients know one
address. A server that dies or hangs costs its own episodes, which are void; it is started again.
Neighbours: `local.py` (one server), `haproxy.cfg` (the proxy), `env/client.py` (a client connects
for each episode).
"""

from __future__ import annotations

import csv
import io
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from env.cgroups import machine_bytes
from tasks.deployment.checks import check_alike, metadata
from tasks.deployment.local import (
    LOGS,
    RUN,
    UNTIL_EOF,
    LocalServer,
    address,
    listener,
    stopper,
    wait_healthy,
)
from tasks.errors import ConfigError, StageError
from tasks.io import write_text
from tasks.params import Params

logger = logging.getLogger(__name__)

INSTALL = "apt-get install haproxy"
CONFIG = Path(__file__).with_name("haproxy.cfg")
RESTARTS = 5
"""Times that each server, and the proxy, is started again."""
LOOK_EVERY_S = 0.5
SESSIONS = "show stat sessions 4 -1"
"""Command of HAProxy for the statistics of the servers, in their order."""
_LEAST_MB = 512
"""Least value of `env.memory_mb`."""


@contextmanager
def local_replicas(params: Params, data: Path | None) -> Iterator[str]:
    """URL of a proxy with `deploy.replicas` servers, which all end with the block.

    Args:
        params: `deploy` sets address and number; `env`, `rewards`, `prepare` set what is served.
        data: folder of problems; None generates them.

    Raises:
        ConfigError: HAProxy is missing, the port is taken, the machine has too little memory, or
            one server has other rules or problems than another.
        StageError: a server or the proxy dies or is not healthy in time.
    """
    program = haproxy()
    part = shared_memory(params)
    with listener(params.deploy) as kept:  # so that no server gets the port of the proxy
        port = int(kept.getsockname()[1])
        group = _Group(part, data.resolve() if data else None)
        try:
            group.start()
            kept.close()
            url = group.connect(program, params.deploy.host, port)
            logger.info("%d servers behind %s", len(group.servers), url)
            yield url
        finally:
            group.stop()


def haproxy() -> str:
    """Path of HAProxy.

    Raises:
        ConfigError: it is not installed.
    """
    places = [os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]
    found = shutil.which("haproxy", path=os.pathsep.join(places))
    if found is None:
        raise ConfigError(
            f"deploy.replicas needs HAProxy, which is missing. Install it: {INSTALL}. Or set "
            "deploy.replicas=1."
        )
    return found


def shared_memory(params: Params) -> Params:
    """Settings of one server, which gets its part of the memory.

    Raises:
        ConfigError: the part is too small.
    """
    whole = params.env.memory_mb or machine_bytes() >> 20
    part = whole // params.deploy.replicas
    if part < _LEAST_MB:
        raise ConfigError(
            f"deploy.replicas {params.deploy.replicas} leaves {part} of {whole} MB to each server, "
            f"which needs {_LEAST_MB}. Set deploy.replicas={max(1, whole // _LEAST_MB)} or less."
        )
    env = params.env.model_copy(update={"memory_mb": part})
    deploy = params.deploy.model_copy(update={"host": "127.0.0.1", "port": 0})
    return params.model_copy(update={"env": env, "deploy": deploy})


class _Group:
    """Servers and their proxy, and a thread that starts again what has died.

    Args:
        params: settings of each server.
        data: folder of problems; None generates them.
    """

    def __init__(self, params: Params, data: Path | None) -> None:
        self._params, self._data = params, data
        self.servers: list[LocalServer] = []
        self._proxy: Proxy | None = None
        self._about: dict[str, Any] = {}
        """Metadata of the first server."""
        self._starts: Counter[str] = Counter()
        """Times that a process was started again, by its address."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="replicas", daemon=True)

    def start(self) -> None:
        """Start the servers together, and compare them."""
        for _ in range(self._params.deploy.replicas):
            self.servers.append(LocalServer(self._params, self._data))
        for server in self.servers:
            server.wait()
        self._about = metadata(self.servers[0].url)
        for server in self.servers:
            self._compare(server)

    def connect(self, program: str, host: str, port: int) -> str:
        """Start the proxy and the thread; returns the proxy's address."""
        places = [f"127.0.0.1:{server.port}" for server in self.servers]
        self._proxy = Proxy(
            program, host, port, places, self._about["max_sessions"], self._params.deploy.wait_s
        )
        self._proxy.wait()
        self._watcher.start()
        return self._proxy.url

    def stop(self) -> None:
        """End the thread, the proxy and the servers."""
        self._over.set()
        with self._lock:
            for process in (self._proxy, *self.servers):
                if process is not None:
                    process.stop()
        if self._watcher.is_alive():
            self._watcher.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            for place, server in enumerate(self.servers):
                if server.process.poll() is not None:
                    self._again(place)
            if self._proxy is not None:
                if self._proxy.process.poll() is not None:
                    self._proxy_again()
                for place in self._proxy.down():
                    self._end_hung(self.servers[place], f"env-{place + 1}")

    def _end_hung(self, server: LocalServer, name: str) -> None:
        """End a living server that fails the proxy's checks; the next look starts it again."""
        if server.process.poll() is None:
            logger.warning("deploy: server %s at %s does not answer", name, server.url)
            server.process.kill()

    def _again(self, place: int) -> None:
        """Start a dead server again; it gets sessions when it is like the others."""
        dead, name = self.servers[place], f"env-{place + 1}"
        assert self._proxy is not None
        if not self._may_start(f"server {name} at {dead.url}", dead):
            return
        self._proxy.set_state(name, "maint")
        try:
            with self._lock:
                if self._over.is_set():
                    return
                dead.stop()  # its sandbox processes
                deploy = self._params.deploy.model_copy(update={"port": dead.port})
                params = self._params.model_copy(update={"deploy": deploy})
                server = self.servers[place] = LocalServer(params, self._data)
            server.wait()
            self._compare(server)
        except (ConfigError, StageError, OSError) as error:
            if self._over.is_set():
                return
            logger.error("deploy: server %s: %s", name, error)
            self.servers[place].stop()
            if isinstance(error, ConfigError):  # with the same files, it would differ again
                self._starts[dead.url] = RESTARTS + 1
                logger.error("deploy: server %s stays down", name)
        else:
            self._proxy.set_state(name, "ready")
            logger.warning("deploy: server %s at %s plays again", name, server.url)

    def _proxy_again(self) -> None:
        dead = self._proxy
        assert dead is not None
        if not self._may_start(f"the proxy at {dead.url}", dead):
            return
        try:
            with self._lock:
                if self._over.is_set():
                    return
                dead.stop()
                dead.start()
            dead.wait()
        except (StageError, OSError) as error:
            if not self._over.is_set():
                logger.error("deploy: %s", error)

    def _may_start(self, what: str, dead: LocalServer | Proxy) -> bool:
        """Count and say a death; whether the process is to be started again."""
        self._starts[dead.url] += 1
        count = self._starts[dead.url]
        if count <= RESTARTS:
            logger.warning(
                "deploy: %s ended with code %s, and its episodes are void. It is started again "
                "(%d of %d), log in %s",
                *(what, dead.process.returncode, count, RESTARTS, dead.log),
            )
        elif count == RESTARTS + 1:
            dead.stop()
            logger.error("deploy: %s ended %d times and stays down", what, count)
        return count <= RESTARTS

    def _compare(self, server: LocalServer) -> None:
        check_alike(self._about, server.url, metadata(server.url))


class Proxy:
    """HAProxy in front of servers.

    Args:
        program: path of HAProxy.
        host: address to listen on.
        port: its port.
        places: `host:port` of each server.
        sessions: sessions that each server plays at a time.
        wait_s: seconds to wait until it is healthy.
    """

    def __init__(
        self,
        program: str,
        host: str,
        port: int,
        places: Sequence[str],
        sessions: int,
        wait_s: float,
    ) -> None:
        name = f"haproxy-{os.getpid()}-{port}"
        self.url, self.log = address(host, port), LOGS / f"{name}.log"
        self._file, self._control = RUN / f"{name}.cfg", RUN / f"{name}.sock"
        self._servers, self._wait_s = servers_section(places, sessions), wait_s
        self._command = [program, "-db", "-f", str(CONFIG), "-f", str(self._file)]
        self._environment = {
            **os.environ,
            "BIND": f"{host}:{port}",
            "REPLICAS": str(len(places)),
            "CONTROL": str(self._control),
        }
        self.start()

    def start(self) -> None:
        """Start the process; it ends with this one."""
        write_text(self._file, self._servers)
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(
                [sys.executable, str(UNTIL_EOF), *self._command],
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._stop = stopper(self.process, "proxy")

    def wait(self) -> None:
        """Wait until a server answers through it.

        Raises:
            StageError: it dies or is not healthy in time; the message ends with its last log lines.
        """
        wait_healthy("proxy", self.url, self.process, self.log, self._wait_s)

    def set_state(self, name: str, state: Literal["maint", "ready"]) -> None:
        """Take a server out, or let it have sessions again; without effect on a dead proxy."""
        with suppress(OSError):
            ask(self._control, f"set server sessions/{name} state {state}")

    def down(self) -> list[int]:
        """Places of the servers that fail the checks; none if the proxy does not answer."""
        with suppress(OSError):
            rows = statistics(self._control, SESSIONS)
            return [place for place, row in enumerate(rows) if row["status"] == "DOWN"]
        return []

    def stop(self) -> None:
        """End the process, and remove its files; an empty log goes too."""
        self._stop()
        for file in (self._file, self._control):
            file.unlink(missing_ok=True)
        if self.log.exists() and self.log.stat().st_size == 0:
            self.log.unlink()


def statistics(control: Path, command: str = "show stat") -> list[dict[str, str]]:
    """Rows of HAProxy's statistics.

    Args:
        control: its control socket.
        command: `show stat`, or `SESSIONS` for the servers alone.

    Raises:
        OSError: it does not answer.
    """
    return list(csv.DictReader(io.StringIO(ask(control, command).removeprefix("# "))))


def ask(control: Path, command: str) -> str:
    """HAProxy's answer to a command.

    Raises:
        OSError: it does not answer.
    """
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(5.0)
        asked.connect(str(control))
        asked.sendall(f"{command}\n".encode())
        return asked.makefile().read()


def servers_section(places: Sequence[str], sessions: int) -> str:
    """Second file of HAProxy's configuration: the servers, for sessions and for other requests.

    Args:
        places: `host:port` of each server.
        sessions: sessions that each server plays at a time.
    """
    lines = ["backend sessions"]
    lines += [
        f"    server env-{n} {place} check maxconn {sessions}" for n, place in enumerate(places, 1)
    ]
    lines.append("backend pages")
    lines += [
        f"    server env-{n} {place} track sessions/env-{n}" for n, place in enumerate(places, 1)
    ]
    return "\n".join([*lines, ""])
