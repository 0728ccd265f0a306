"""Attacks on the door of the server, under both ways of starting it: nothing locks or kills it.

Its hard limit of descriptors is low, so that few connections are many. The slow clients of `slow`
begin with the servers, so that the tests of their end wait little.
"""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import psutil
import pytest
from openenv.cli._validation import validate_running_environment
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from env.server.door.protocol import CONTROLS_PER_S

ROOT = Path(__file__).resolve().parents[2]
DESCRIPTORS = 128
SESSIONS = (DESCRIPTORS - 24) // 10
WAYS = {"module": ["-m", "env.server.app"], "uvicorn": ["-m", "uvicorn", "env.server.app:app"]}
SETTINGS = """\
env: {idle_timeout_s: 60}
prepare: {synthetic: {collections: {train: 2, validation: 1, test: 1}}}
"""
MACHINE = """\
import signal, socket, time
real, ahead = time.time, [0]
time.time = lambda: real() + ahead[0]
signal.signal(signal.SIGUSR1, lambda *_: ahead.append(ahead.pop() + 3600))
listen = socket.socket.listen
def small(self, *backlog):
    self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    listen(self, *backlog)
socket.socket.listen = small
"""
"""The server's `sitecustomize`: SIGUSR1 puts its clock one hour ahead, and send buffers are small.

Otherwise the kernel keeps 4 MB for a client that reads nothing.
"""
UPGRADE = (
    "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
PAGE = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
RESET = '{"type":"reset","data":{"seed":0}}'


class Slow(Thread):
    """A client that sends too little, and notes what it reads and when it is cut off."""

    def __init__(self, opened: socket.socket) -> None:
        super().__init__(daemon=True)
        self.opened, self.answer, self.ended = opened, b"", 0.0
        self.start()

    def run(self) -> None:
        with suppress(OSError):
            while part := self.opened.recv(4096):
                self.answer += part
        self.ended = time.monotonic()


class Old(Thread):
    """A session that plays before the clock is set, and after OpenEnv would look for idle ones."""

    def __init__(self, session: ClientConnection) -> None:
        super().__init__(daemon=True)
        self.session, self.printed = session, ""
        session.send(RESET)
        assert said(session) == "observation"
        assert "41" in printed(session, "x = 41; print(x)")
        self.start()

    def run(self) -> None:
        time.sleep(17)  # a quarter of the idle time, and a little
        self.printed = printed(self.session, "print(x + 1)")


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    port: int
    log: Path
    started: float = field(default_factory=time.monotonic)
    slow: dict[str, Slow] = field(default_factory=dict)
    unread: socket.socket | None = None
    old: Old | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def session(self, **options: Any) -> ClientConnection:
        return connect(f"ws://127.0.0.1:{self.port}/ws", **options)

    def tcp(self, first: str = "") -> socket.socket:
        opened = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        opened.sendall(first.encode())
        return opened

    def holds(self, opened: Sequence[socket.socket]) -> list[bool]:
        """Whether the server has not closed each connection; closing does not reach its client."""
        peers = {
            (link.raddr.ip, link.raddr.port)
            for link in psutil.Process(self.process.pid).net_connections("tcp")
            if link.raddr
        }
        return [one.getsockname() in peers for one in opened]

    def rss_mb(self) -> float:
        return psutil.Process(self.process.pid).memory_info().rss / (1 << 20)


def start(way: str, folder: Path) -> Server:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = folder / "settings.yaml"
    settings.write_text(SETTINGS)
    (folder / "sitecustomize.py").write_text(MACHINE)
    log = folder / f"{way}.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, *WAYS[way], "--port", str(port)],
            env={
                **os.environ,
                "PYTHONPATH": f"{folder}:{ROOT}",
                "RLM_SETTINGS": str(settings),
                "RLM_DATA": "",
            },
            cwd=folder,
            stdout=stream,
            stderr=stream,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, DESCRIPTORS)),
        )
    return Server(process, port, log)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """Both servers with their slow clients."""
    folder = tmp_path_factory.mktemp("door")
    both = {way: start(way, folder) for way in WAYS}
    try:
        for server in both.values():
            while True:
                assert server.process.poll() is None, server.log.read_text()
                with suppress(httpx.HTTPError):
                    if httpx.get(f"{server.url}/health").is_success:
                        break
                time.sleep(0.1)
            server.old = Old(server.session())
            os.kill(server.process.pid, signal.SIGUSR1)
            server.started = time.monotonic()
            body = "POST /reset HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
            half = "GET /health HTTP/1.1\r\nHo"
            server.slow = {
                "nothing": Slow(server.tcp()),
                "half a head": Slow(server.tcp(half)),
                "half a second head": Slow(
                    server.tcp(f"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n{half}")
                ),
                "half a body": Slow(server.tcp(body)),
            }
            server.unread = server.tcp(PAGE * 50)
        yield both
    finally:
        for server in both.values():
            for client in server.slow.values():
                with suppress(OSError):
                    client.opened.shutdown(socket.SHUT_RDWR)  # closing would not end its recv
            if server.unread is not None:
                server.unread.close()
            if server.old is not None:
                server.old.session.close()
            server.process.terminate()
        for server in both.values():
            server.process.wait(timeout=20)


@pytest.fixture(params=WAYS)
def server(servers: dict[str, Server], request: pytest.FixtureRequest) -> Server:
    return servers[request.param]


def said(session: ClientConnection) -> Any:
    answer = json.loads(session.recv(timeout=30))
    return answer["data"].get("code", answer["type"])


def printed(session: ClientConnection, code: str) -> str:
    """The frames of the root's answer to a cell that no clock ended."""
    session.send(json.dumps({"type": "step", "data": {"text": f"```repl\n{code}\n```"}}))
    seen = json.loads(session.recv(timeout=30))["data"]["observation"]
    assert seen["void"] is None
    return str(seen["frames"])


def plays_nine_frames(session: ClientConnection) -> None:
    """Begin an episode whose root and eight children hold a REPL each."""
    call = "```repl\nrlm_query_batched(['a'] * 8)\n```"
    session.send(RESET)
    assert said(session) == "observation"
    turns = [{"frame": 0, "text": call}]
    for frames in (8, 8):
        session.send(json.dumps({"type": "step", "data": {"turns": turns}}))
        seen = json.loads(session.recv(timeout=30))["data"]["observation"]
        turns = [
            {"frame": view["frame"], "text": "```repl\nx = 1\n```"}
            for view in seen["frames"]
            if view["status"] == "ready"
        ]
        assert len(turns) == frames


def plays(server: Server) -> bool:
    """Whether a new client gets an episode, with a REPL."""
    # Refused by a full server, or closed before the first message.
    with suppress(ConnectionClosed, InvalidStatus), server.session() as session:
        session.send(RESET)
        return said(session) == "observation" and "42" in printed(session, "print(6 * 7)")
    return False


def plays_within(server: Server, seconds: float) -> bool:
    """Whether a new client gets an episode, if it tries again until then."""
    deadline = time.monotonic() + seconds
    while not plays(server):
        if time.monotonic() > deadline:
            return False
    return True


# --- messages and bodies


@pytest.mark.parametrize("count", [500, 20_000, 200_000])
def test_wrong_turns_are_not_amplified(server: Server, count: int) -> None:
    turns = ",".join(["{}"] * count)
    before = server.rss_mb()
    with server.session() as session:
        session.send(f'{{"type":"step","data":{{"turns":[{turns}]}}}}')
        answer = session.recv(timeout=30)
        session.send(RESET)
        assert said(session) == "observation"
    assert len(answer) < 1000
    assert server.rss_mb() < before + 40
    posted = httpx.post(f"{server.url}/step", content=f'{{"action":{{"turns":[{turns}]}}}}')
    assert posted.status_code in (413, 422)
    assert len(posted.content) < 1000


def test_a_large_message_is_not_even_read(server: Server) -> None:
    head = b"\x81\xff" + (3_000_000).to_bytes(8) + b"mask"  # of a text frame
    with server.tcp(UPGRADE) as raw:
        answer = raw.recv(4096)
        raw.sendall(head)
        while part := raw.recv(4096):
            answer += part
    assert b" 101 " in answer
    assert (1009).to_bytes(2) + b"frame with 3000000 bytes exceeds limit of 2000000" in answer


def test_no_message_is_unpacked(server: Server) -> None:
    with server.session(compression="deflate") as session:
        assert session.protocol.extensions == []


def test_a_large_body_is_refused_and_not_kept(server: Server) -> None:
    before = server.rss_mb()
    head = "POST /reset HTTP/1.1\r\nHost: localhost\r\nContent-Length: 400000000\r\n\r\n"
    with server.tcp(head) as sender:
        with suppress(OSError):
            for _ in range(50):
                sender.sendall(b" " * 1_000_000)
        assert server.rss_mb() < before + 20
    assert httpx.post(f"{server.url}/mcp", content=b" " * 1_000_000).json()["error"]
    chunked = httpx.post(f"{server.url}/reset", content=iter([b"{}"]))
    assert chunked.status_code == 411  # before a chunk of it is parsed


def test_refusals_repeat_little(server: Server) -> None:
    for route in ("splits", "tasks"):
        long = httpx.get(f"{server.url}/{'x' * 50_000}/{route}")
        assert (long.status_code, len(long.content) < 300) == (414, True)
    with server.session() as session:
        for wanted in ("problem_id", "split", "difficulty"):
            session.send(json.dumps({"type": "reset", "data": {wanted: "x" * 50_000}}))
            answer = session.recv(timeout=30)
            assert "this server has no problem for" in answer
            assert len(answer) < 1000


def test_http_errors_echo_nothing(server: Server) -> None:
    for path, sent in {
        "/reset": {"seed": "secret"},
        "/step": {"action": {"secret": "secret"}},
        "/rlm/tasks": {"secret": "secret"},
        "/rlm/task": {"split": ["secret"] * 99, "index": "secret"},
    }.items():
        answer = httpx.post(server.url + path, json=sent)
        assert answer.status_code == 422
        assert "secret" not in answer.text
        assert "http" not in answer.text


# --- routes


def test_mcp_makes_no_session(server: Server) -> None:
    create = {"jsonrpc": "2.0", "method": "openenv/session/create", "id": 1, "params": {}}
    threads = len(os.listdir(f"/proc/{server.process.pid}/task"))
    with httpx.Client() as client:
        for _ in range(SESSIONS + 5):
            assert "result" not in client.post(f"{server.url}/mcp", json=create).json()
    assert len(os.listdir(f"/proc/{server.process.pid}/task")) <= threads
    assert plays(server)


def test_other_sockets_and_shared_sessions_are_refused(server: Server) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        connect(f"ws://127.0.0.1:{server.port}/mcp")
    with connect(f"ws://127.0.0.1:{server.port}/ws?session_id=x%0ACRITICAL") as session:
        assert said(session) == "SESSION_ERROR"
    assert "\nCRITICAL" not in server.log.read_text()


def test_all_six_criteria_of_openenv_pass(server: Server) -> None:
    report = validate_running_environment(server.url)
    assert len(report["criteria"]) == 6
    assert report["passed"], report


def test_no_page_of_another_host_plays(server: Server) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        server.session(origin="https://evil.example")
    with server.session(origin=f"http://127.0.0.1:{server.port}"):
        pass
    assert httpx.get(f"{server.url}/metadata", headers={"host": "evil.example"}).status_code == 403
    posted = httpx.post(f"{server.url}/reset", headers={"origin": "https://evil.example"})
    assert posted.status_code == 403


def test_no_client_names_an_address_as_its_proxy(servers: dict[str, Server]) -> None:
    asked = f"{servers['module'].url}/health/"  # it redirects to an address of its own
    told = httpx.get(asked, headers={"X-Forwarded-Proto": "https"}).headers["location"]
    assert told == asked.rstrip("/")


# --- sessions, connections, log


def test_a_session_beyond_the_limit_reads_why(server: Server) -> None:
    with ExitStack() as stack:
        for _ in range(SESSIONS - 1):  # and the old one
            session = stack.enter_context(server.session())
            plays_nine_frames(session)
        beyond = stack.enter_context(server.session())
        data = json.loads(beyond.recv(timeout=30))["data"]
        assert data["code"] == "CAPACITY_REACHED"
        assert f"at most {SESSIONS} episodes at a time (its hard limit" in data["message"]
        assert httpx.get(f"{server.url}/metadata").json()["max_sessions"] == SESSIONS
    assert plays(server)


def test_what_repeats_is_one_line(server: Server) -> None:
    with server.session() as session:
        for _ in range(200):
            session.send('{"type":"reset","data":{"func":1}}')
            assert said(session) == "EXECUTION_ERROR"
    lines = server.log.read_text().splitlines()
    assert len([line for line in lines if "session failed" in line]) == 1
    assert len(lines) < 60


@pytest.mark.parametrize("what", ["nothing", "half a head", "half a second head", "half a body"])
def test_a_slow_client_is_cut_off_after_ten_seconds(server: Server, what: str) -> None:
    client = server.slow[what]
    client.join(30)
    least = 4 if what == "half a second head" else 8  # uvicorn waits 5 s for a next request
    assert least < client.ended - server.started < 25
    assert (b" 408 " in client.answer) == (what == "half a body")


def test_a_client_that_reads_no_answer_is_cut_off(server: Server) -> None:
    while server.holds([server.unread]) == [True]:
        assert time.monotonic() - server.started < 25
        time.sleep(0.1)


def test_clients_that_read_no_answer_lock_nobody_out(server: Server) -> None:
    with ExitStack() as stack:
        unread = [stack.enter_context(server.tcp(PAGE * 50)) for _ in range(70)]
        time.sleep(1.0)
        for _ in range(3):
            assert httpx.get(f"{server.url}/health", timeout=30).status_code == 200
        assert all(server.holds(unread))


def ends(server: Server, sockets: list[socket.socket]) -> int:
    """Number of connections that the server has closed after some seconds, at least one."""
    deadline = time.monotonic() + 10
    while all(held := server.holds(sockets)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return held.count(False)


@pytest.mark.parametrize(("first", "other"), [(b"\x81", b"\x81"), (b"\1", b"\0")])
def test_messages_that_wait_and_parts_of_one_are_bounded(server, first, other):
    with server.tcp(UPGRADE) as raw:
        assert b" 101 " in raw.recv(4096)
        with suppress(ConnectionError):  # it may end before all is sent
            raw.sendall(b"".join(kind + b"\x80mask" for kind in (first, *[other] * 20_000)))
        assert ends(server, [raw]) == 1


@pytest.mark.parametrize(
    "server", ["module", pytest.param("uvicorn", marks=pytest.mark.nightly)], indirect=True
)
@pytest.mark.parametrize("control", [b"\x89\x80mask", b"\x8a\x80mask"], ids=["ping", "pong"])
def test_control_frames_without_measure_end_their_connection(server, control):
    with server.tcp(UPGRADE) as few, server.tcp(UPGRADE) as many:
        assert b" 101 " in few.recv(4096)
        few.sendall(control * CONTROLS_PER_S)
        with suppress(ConnectionError):
            many.sendall(control * 20_000)
        assert ends(server, [few, many]) == 1
        assert server.holds([few]) == [True]


def test_a_clock_that_is_set_ends_no_session(server: Server) -> None:
    server.old.join(60)
    assert "42" in server.old.printed


def test_only_this_machine_reaches_a_server_by_default(server: Server) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), timeout=30)


@pytest.mark.parametrize("first", ["", UPGRADE], ids=["nothing", "sockets"])
def test_a_flood_of_connections_harms_no_session(server: Server, first: str) -> None:
    with server.session() as honest:
        honest.send(RESET)
        assert said(honest) == "observation"
        printed(honest, "x = 1")  # starts its REPL
        with ExitStack() as stack:
            for _ in range(2 * DESCRIPTORS):
                stack.enter_context(server.tcp(first))
            for number in range(2):
                assert str(number + 40) in printed(honest, f"print({number} + 40)")
            assert first or plays_within(server, 5)
    # Places are free when the last socket has been accepted and ended.
    assert plays_within(server, 20)
    assert server.log.stat().st_size < 50_000
