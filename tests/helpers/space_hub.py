"""A server that speaks the Hub's HTTP for Spaces, models and data sets, as its real client asks.

A commit to a Space unpacks the tree and starts its server: the Space is a real process. Parquet
files are large: they go to a store without a token (Git LFS), and a commit names them. Faults are
put in by tests.
"""

import base64
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_write_never_in_a_log"
READ_TOKEN = "hf_read_never_in_a_log"
USER = "ada"
SHA = "0123456789abcdef0123456789abcdef01234567"
"""Commit of a repository that a test made."""


@dataclass
class Repo:
    """One repository, and what runs of it when it is a Space."""

    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    large: set[str] = field(default_factory=set)
    """Names of the files that were committed as Git LFS."""
    commits: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    runtime: dict[str, Any] = field(default_factory=lambda: {"stage": "NO_APP_FILE"})
    logs: dict[str, str] = field(default_factory=lambda: {"build": "", "run": ""})
    host: str = ""
    restarts: int = 0
    gated: bool = False
    """Whether a public repository is read with a token only."""

    @property
    def sha(self) -> str:
        return self.commits[-1]

    def commit(self) -> str:
        told = f"{len(self.commits)} {sorted(self.files)}"
        self.commits.append(hashlib.sha1(told.encode()).hexdigest())
        return self.sha


class SpaceHub(ThreadingHTTPServer):
    """The Hub.

    Args:
        folder: where Spaces are unpacked.
        host: where every Space says that it runs; None: each commit starts a process.
    """

    daemon_threads = True

    def __init__(self, folder: Path, host: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.host = folder, host
        self.repos: dict[tuple[str, str], Repo] = {}
        self.blobs: dict[str, bytes] = {}
        """Contents of large files by their SHA-256, committed or not."""
        self.faults: dict[str, list[Any]] = {}
        """Statuses to answer with, one a request, by a part of "METHOD path".

        A float is a number of seconds, after which the answer is 503. `after`: do it, then answer
        502. `always`: a status for ever.
        """
        self.script: list[dict[str, Any]] = []
        """Runtimes that are reported before the real one; the last of them for ever."""
        self.scopes = {TOKEN: "write", READ_TOKEN: "read"}
        self.asked: list[str] = []
        self.lock = Lock()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, kind: str, name: str, files: dict[str, bytes], gated: bool = False) -> None:
        """A public repository of somebody else."""
        self.repos[kind, name] = Repo(False, files=files, commits=[SHA], gated=gated)

    def run_space(self, name: str, repo: Repo) -> None:
        """Build and start the Space's newest commit, as the Hub does after a push."""
        sha = repo.sha
        repo.runtime = {"stage": "BUILDING", "sha": sha}
        if self.host is not None:
            repo.host, repo.runtime = self.host, {"stage": "RUNNING", "sha": sha}
            return
        Thread(target=self._run, args=(name, repo, sha), daemon=True).start()

    def _run(self, name: str, repo: Repo, sha: str) -> None:
        place = self.folder / f"{name.replace('/', '-')}-{len(repo.commits)}"
        tree = place / "tree"
        for path, content in repo.files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        log = place / "log"
        with log.open("ab") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "env.server.app", "--port", str(port)],
                cwd=tree,
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": str(tree),
                    "RLM_SETTINGS": str(tree / "params.yaml"),
                    "HF_ENDPOINT": self.url,
                    "HF_HOME": str(place / "cache"),
                    **repo.variables,
                    **repo.secrets,
                },
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        self._processes.append(process)
        while process.poll() is None:
            with suppress(OSError):
                url = f"http://127.0.0.1:{port}"
                urllib.request.urlopen(f"{url}/health", timeout=2).close()
                repo.host, repo.runtime = url, {"stage": "RUNNING", "sha": sha}
                return
            time.sleep(0.1)
        repo.logs["run"] = log.read_text()
        repo.runtime = {"stage": "RUNTIME_ERROR", "sha": sha}

    def server_close(self) -> None:
        """End every Space, too."""
        super().server_close()
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class _Handler(BaseHTTPRequestHandler):
    server: SpaceHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement

    def log_message(self, *arguments: object) -> None:
        pass

    def _answer(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = iter(lambda: self.rfile.read(int(self.rfile.readline(), 16) + 2)[:-2], b"")
            self.body = b"".join(parts)
        else:
            self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = unquote(urlsplit(self.path).path)
        request = f"{self.command} {path}"
        self.server.asked.append(request)
        fault = self._fault(request)
        if isinstance(fault, float):
            time.sleep(fault)
            fault = 503
        if isinstance(fault, int):
            return self._send(fault, {"error": "out of order"})
        with self.server.lock:
            status, answer = self._route(path)
        if fault == "after":
            status, answer = 502, {}
        self._send(status, answer)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _answer

    def _fault(self, request: str) -> Any:
        for part, faults in self.server.faults.items():
            if part in request and faults:
                return faults[1] if faults[0] == "always" else faults.pop(0)
        return None

    @property
    def _scope(self) -> str | None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return self.server.scopes.get(token)

    def _route(self, path: str) -> tuple[int, Any]:
        if path == "/api/validate-yaml":
            return 200, {}
        if path.startswith("/lfs/"):
            return self._store(path.removeprefix("/lfs/"))
        if path.startswith(("/api/whoami", "/api/repos")) and self._scope is None:
            return 401, {"error": "Invalid username or password."}
        if path == "/api/whoami-v2":
            return 200, {"type": "user", "name": USER, "orgs": [], "auth": {}}
        if path == "/api/repos/create":
            return self._create()
        path, batch, _ = path.partition(".git/info/lfs/objects/batch")
        parts = path.removeprefix("/api/").strip("/").split("/")
        if parts[0] not in ("models", "datasets", "spaces"):
            parts = ["models", *parts]
        kind, name, rest = parts[0].removesuffix("s"), "/".join(parts[1:3]), parts[3:]
        repo = self.server.repos.get((kind, name))
        reads = self.command in ("GET", "HEAD")
        open_to_all = repo is not None and reads and not (repo.private or repo.gated)
        if self._scope is None and not open_to_all:
            return 401, {"code": "GatedRepo" if repo and repo.gated else "RepoNotFound"}
        if repo is None:
            return 404, {"code": "RepoNotFound"}
        if not reads and (self._scope != "write" or not name.startswith(f"{USER}/")):
            return 403, {"error": "Forbidden: this token cannot write"}
        self.commit = repo.sha
        if batch:
            asked = json.loads(self.body)["objects"]
            return 200, {"transfer": "basic", "objects": [*map(self._upload, asked)]}
        return self._on_repo(kind, name, repo, rest)

    def _upload(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Where to put a large file; nowhere if it is there."""
        if asked["oid"] in self.server.blobs:
            return asked
        return {**asked, "actions": {"upload": {"href": f"{self.server.url}/lfs/{asked['oid']}"}}}

    def _store(self, oid: str) -> tuple[int, Any]:
        if "Authorization" in self.headers:
            return 400, {"error": "the token was sent to the store"}
        if hashlib.sha256(self.body).hexdigest() != oid:
            return 400, {"error": "the content has another hash"}
        self.server.blobs[oid] = self.body
        return 200, {}

    def _create(self) -> tuple[int, Any]:
        asked = json.loads(self.body)
        owner = asked.get("organization") or USER
        name = f"{owner}/{asked['name']}"
        kind = asked.get("type", "model")
        if self._scope != "write" or owner != USER:
            return 403, {"error": "You don't have the rights to create this repository"}
        url = f"{self.server.url}/{kind}s/{name}"
        if (kind, name) in self.server.repos:
            return 409, {"error": "You already created this repo", "url": url}
        repo = Repo(asked.get("visibility") == "private")
        repo.files[".gitattributes"] = b"* text\n"
        repo.commit()
        self.server.repos[kind, name] = repo
        return 200, {"url": url, "name": name, "id": "1"}

    def _on_repo(self, kind: str, name: str, repo: Repo, rest: list[str]) -> tuple[int, Any]:
        match rest:
            case ["revision" | "resolve", revision, *_] if revision not in ("main", *repo.commits):
                return 404, {"code": "RevisionNotFound"}
            case [] | ["revision", _]:
                return 200, _described(name, repo)
            case ["preupload", _]:
                asked = [one["path"] for one in json.loads(self.body)["files"]]
                same = {"shouldIgnore": False, "oid": None}
                return 200, {"files": [{"path": p, "uploadMode": _mode(p), **same} for p in asked]}
            case ["commit", _]:
                return self._commit(kind, name, repo)
            case ["runtime"]:
                script = self.server.script
                now = (script.pop(0) if len(script) > 1 else script[0]) if script else repo.runtime
                return 200, {"hardware": {}, **now}
            case ["restart"]:
                repo.restarts += 1
                self.server.run_space(name, repo)
                return 200, {"hardware": {}, **repo.runtime}
            case ["variables" | "secrets" as which]:
                values: dict[str, str] = getattr(repo, which)
                if self.command == "DELETE":
                    del values[json.loads(self.body)["key"]]
                if self.command == "POST":
                    asked = json.loads(self.body)
                    values[asked["key"]] = asked["value"]
                return 200, {key: {"value": value} for key, value in repo.variables.items()}
            case ["logs", which]:
                lines = repo.logs[which].splitlines(keepends=True)
                events = [f"data: {json.dumps({'data': line})}\n\n" for line in lines]
                return 200, "".join(events).encode()
            case ["tree", *_]:
                return 200, [
                    {"type": "file", "path": path, "size": len(content), "oid": _oid(content)}
                    for path, content in repo.files.items()
                ]
            case ["resolve", _, *file] if "/".join(file) in repo.files:
                return 200, repo.files["/".join(file)]
        return 404, {"code": "EntryNotFound", "error": f"no such page: {rest}"}

    def _commit(self, kind: str, name: str, repo: Repo) -> tuple[int, Any]:
        header, *operations = [json.loads(line) for line in self.body.splitlines()]
        if header["value"].get("parentCommit") not in (None, repo.sha):
            return 412, {"error": "a commit has happened since"}
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "file":
                repo.files[value["path"]] = base64.b64decode(value["content"])
                repo.large.discard(value["path"])
            elif operation["key"] == "lfsFile":
                repo.files[value["path"]] = self.server.blobs[value["oid"]]
                repo.large.add(value["path"])
            else:
                del repo.files[value["path"]]
        sha = repo.commit()
        if kind == "space":
            self.server.run_space(name, repo)
        url = f"{self.server.url}/{kind}s/{name}/commit/{sha}"
        return 200, {"commitOid": sha, "commitUrl": url}

    def _send(self, status: int, answer: Any) -> None:
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        with suppress(OSError):  # a client that ran out of patience
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            if isinstance(answer, bytes):
                self.send_header("ETag", f'"{_oid(content)}"')
                self.send_header("X-Repo-Commit", self.commit)
            elif "code" in answer:
                self.send_header("X-Error-Code", answer["code"])
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)


def _oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _pointer(content: bytes) -> dict[str, Any]:
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 130}


def _mode(path: str) -> str:
    return "lfs" if path.endswith(".parquet") else "regular"


def _described(name: str, repo: Repo) -> dict[str, Any]:
    return {
        "id": name,
        "sha": repo.sha,
        "private": repo.private,
        "host": repo.host or None,
        "safetensors": {"parameters": {"BF16": 1}, "total": 1},
        "siblings": [
            {"rfilename": path, "size": len(content), "blobId": _oid(content)}
            | ({"lfs": _pointer(content)} if path in repo.large else {})
            for path, content in repo.files.items()
        ],
    }


@contextmanager
def serve_spaces(folder: Path, host: str | None = None) -> Iterator[SpaceHub]:
    """A running Hub; its Spaces end with it."""
    with SpaceHub(folder, host) as hub:
        Thread(target=hub.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield hub
        finally:
            hub.shutdown()
