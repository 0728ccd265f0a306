"""A stand-in for a server of vLLM that is stricter than vLLM, and that can die.

It answers what `agent/vllm/server.py` asks, with a small model on the CPU and without a prefix
cache. It refuses requests without all sampling parameters, and fields that vLLM 0.31 does not have.
It refuses adapters in place, and those under a name or path that was used. It plays one turn after
the other.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from peft import PeftModel

from agent.decoding.row_buffer import CacheShape
from agent.decoding.sampling import SampledTurn, sample
from agent.policies.hf_policy import load_model
from agent.vllm.policy import PURE
from agent.vllm.server import Engine
from helpers.vllm_contract import GIVEN, contract

NAME = "base-0123"

Answer = tuple[int, dict[str, Any]]
"""Status and body."""


class FakeVllm(ThreadingHTTPServer):
    """A server of one base model and its adapters.

    Args:
        base: folder of the model.
        name: served name.
        length: `--max-model-len`.
    """

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, base: Path, name: str = NAME, length: int = 256) -> None:
        super().__init__(("127.0.0.1", 0), FakeHandler)
        self.name, self.length = name, length
        self._base, _ = load_model(base, device="cpu")
        self._shape = CacheShape.of(self._base)
        self.models: dict[str, Any] = {name: self._base}
        """Base and adapters by name."""
        self.bodies: list[dict[str, Any]] = []
        """Bodies of all completions."""
        self.loads: list[str] = []
        """Paths of all adapters that were loaded."""
        self.distort: dict[str, Any] = {}
        """Fields of a choice that replace the right ones."""
        self.known_paths: set[str] = set()
        """Paths of adapters since it was started."""
        self.dies: tuple[int, int] | None = None
        """Completions before its death, and requests that then get no answer."""
        self.away = 0
        """Requests that get no answer before it is started again."""
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """Address without a path."""
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def engine(self) -> Engine:
        """The server as a training sees it."""
        return Engine(self.url, self.name, "vllm serve base")

    def die(self, requests: int) -> None:
        """Give no answer to so many requests, then answer as a server that was started again."""
        self.away, self.dies = requests, None
        self.models = {self.name: self.models[self.name]}
        self.known_paths = set()

    def answer(self, path: str, body: dict[str, Any]) -> Answer | None:
        """Answer a request; None breaks the connection."""
        calls: dict[str, Callable[[dict[str, Any]], Answer]] = {
            "/health": lambda _: (200, {}),
            "/v1/models": self.cards,
            "/v1/completions": self.complete,
            "/v1/load_lora_adapter": self.load,
            "/v1/unload_lora_adapter": self.unload,
        }
        with self.lock:
            if self.dies is not None and len(self.bodies) >= self.dies[0]:
                self.die(self.dies[1])
            if self.away:
                self.away -= 1
                return None
            return calls.get(path, lambda _: (404, {}))(body)

    def cards(self, _: dict[str, Any]) -> Answer:
        """The base and the loaded adapters."""
        return 200, {"data": [{"id": name, "max_model_len": self.length} for name in self.models]}

    def complete(self, body: dict[str, Any]) -> Answer:
        """Sample a turn after the ids of the prompt."""
        self.bodies.append(body)
        wrong = [key for key, value in PURE.items() if body.get(key) != value]
        missing = [key for key in GIVEN if key not in body]
        unknown = sorted(body.keys() - set(contract()["completion_request"]))
        if wrong or missing or unknown:
            return 400, {"error": {"message": f"sampling: {wrong + missing + unknown}"}}
        if body["model"] not in self.models:
            return 404, {"error": {"message": f"The model {body['model']} does not exist."}}
        if len(body["prompt"]) + body["max_tokens"] > self.length:
            return 400, {"error": {"message": "maximum context length"}}
        row = SampledTurn(0, body["prompt"], 0, None, body["max_tokens"], body["seed"])
        stop_ids = frozenset(body["stop_token_ids"])
        model = self.models[body["model"]]
        list(sample(model, self._shape, [row], stop_ids, body["temperature"]))  # fills the row
        choice = {
            "index": 0,
            "text": "",
            "finish_reason": "stop" if row.sampled[-1] in stop_ids else "length",
            "token_ids": row.sampled,
            "prompt_token_ids": body["prompt"],
            "logprobs": {"token_logprobs": row.logprobs},
        }
        assert choice.keys() <= set(contract()["completion_choice"])
        return 200, {"choices": [choice | self.distort]}

    def load(self, body: dict[str, Any]) -> Answer:
        """Load an adapter from a folder."""
        if body.keys() != {"lora_name", "lora_path"}:
            return 400, {"error": {"message": "in place, or not understood"}}
        name, path = body["lora_name"], body["lora_path"]
        if name in self.models or path in self.known_paths:
            return 400, {"error": {"message": "the lora adapter has already been loaded"}}
        if not Path(path).is_absolute() or not Path(path, "adapter_config.json").is_file():
            return 404, {"error": {"message": f"No adapter found for {path}"}}
        self.loads.append(path)
        self.known_paths.add(path)
        adapted = PeftModel.from_pretrained(copy.deepcopy(self._base), path)
        self.models[name] = adapted.merge_and_unload().eval()
        return 200, {}

    def unload(self, body: dict[str, Any]) -> Answer:
        """Forget an adapter."""
        known = self.models.pop(body["lora_name"], None)
        return (404 if known is None else 200), {}


class FakeHandler(BaseHTTPRequestHandler):
    """One connection."""

    server: FakeVllm
    disable_nagle_algorithm = True
    protocol_version = "HTTP/1.1"

    def respond(self) -> None:
        """Answer a request, which may have a JSON body."""
        length = int(self.headers.get("content-length", 0))
        body = json.loads(self.rfile.read(length) or b"{}")
        found = self.server.answer(self.path, body)
        if found is None:
            self.close_connection = True
            return
        data = json.dumps(found[1]).encode()
        self.send_response(found[0])
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = respond

    def log_message(self, *args: object) -> None:
        """Log nothing."""


@contextmanager
def serving(base: Path, **changes: Any) -> Iterator[FakeVllm]:
    """A server that lives as long as the block."""
    fake = FakeVllm(base, **changes)
    threading.Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.02}).start()
    try:
        yield fake
    finally:
        fake.shutdown()
        fake.server_close()
