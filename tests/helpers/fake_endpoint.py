"""A small OpenAI-compatible server for tests."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def reversed_message(body: dict) -> str:
    return body["messages"][-1]["content"][::-1]


class FakeServer(ThreadingHTTPServer):
    """Answers with `reply` of the request's body; `plan` holds statuses to give before that."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FakeHandler)
        self.bodies: list[dict] = []
        self.plan: list[int] = []
        self.headers: dict[str, str] = {}
        """Of the answers that the plan gives."""
        self.error: dict[str, str] = {"message": "no"}
        """Body of such an answer."""
        self.reply: Callable[[dict], str | None] = reversed_message
        self.beside: dict[str, object] = {}
        """Of a message, beside its content."""
        self.raw: bytes | None = None
        """A whole body to send instead of a completion."""
        self.usage: object = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
        self.endless: bytes | None = None
        """Part of a body that it sends again and again, every 0.05 s."""
        self.endless_headers = False
        """Whether that part comes before the headers have ended."""
        self.finish = "stop"
        self.pause_s = 0.0
        self.together = threading.Barrier(1)
        """As many requests come in before one is answered."""
        self.in_flight = self.most_in_flight = 0
        self.lock = threading.Lock()
        self.ending = threading.Event()
        """Ends pauses and endless answers, which would hold threads and connections for minutes."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class FakeHandler(BaseHTTPRequestHandler):
    server: FakeServer
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            self.server.bodies.append(body | {"path": self.path})
            self.server.in_flight += 1
            self.server.most_in_flight = max(self.server.most_in_flight, self.server.in_flight)
            status = self.server.plan.pop(0) if self.server.plan else 200
        self.server.ending.wait(self.server.pause_s)
        self.server.together.wait(60)
        with self.server.lock:
            self.server.in_flight -= 1
        if status == 0:  # drop the connection
            self.connection.close()
            return
        if self.server.endless is not None:
            self.send_response(status)
            if self.server.endless_headers:
                self.flush_headers()
            else:
                self.end_headers()
            with suppress(OSError):  # the client leaves
                while not self.server.ending.wait(0.05):
                    self.wfile.write(self.server.endless)
            return
        data = json.dumps({"error": self.server.error}).encode()
        if status == 200:
            data = self.server.raw or json.dumps(self._completion(body)).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for name, value in self.server.headers.items() if status != 200 else ():
            self.send_header(name, value)
        with suppress(OSError):  # the client has left
            self.end_headers()
            self.wfile.write(data)

    def _completion(self, body: dict) -> dict:
        message = {"role": "assistant", "content": self.server.reply(body), **self.server.beside}
        choice = {"index": 0, "message": message, "finish_reason": self.server.finish}
        about = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"]}
        return {**about, "choices": [choice], "usage": self.server.usage}

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[FakeServer]:
    """A server that lives as long as the block."""
    with FakeServer() as fake:
        threading.Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.02}).start()
        yield fake
        fake.ending.set()
        fake.shutdown()
