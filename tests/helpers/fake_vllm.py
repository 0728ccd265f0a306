"""A stand-in for servers of vLLM: its HTTP interface, with a tiny model on the CPU.

It is stricter than vLLM. It refuses requests without all sampling parameters, and fields that vLLM
0.31 does not have. It refuses adapters in place, and those under a name or path that was used.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from agent.policies.hf_policy import load_model
from agent.policies.sampling import CacheShape, SampledTurn, sample
from agent.policies.vllm_server import Engine
from helpers.vllm_contract import GIVEN, SAMPLING, contract

NAME = "base-0123"


class FakeVllm(ThreadingHTTPServer):
    """A server of one base model.

    Args:
        base: folder of the model.
        name: served name.
        length: `--max-model-len`.
    """

    daemon_threads = True

    def __init__(self, base: Path, name: str = NAME, length: int = 256) -> None:
        super().__init__(("127.0.0.1", 0), FakeVllmHandler)
        self.name, self.length = name, length
        model, _ = load_model(base, device="cpu")
        self.models: dict[str, Any] = {name: model}
        self.shape = CacheShape.of(model)
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
        self.pause_s = 0.0
        """Before each completion; one is sampled at a time."""
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def engine(self) -> Engine:
        return Engine([self.url], self.name, "vllm serve base")

    def die(self, requests: int) -> None:
        """Give no answer to so many requests, then answer as a server that was started again."""
        self.away, self.dies = requests, None
        self.models = {self.name: self.models[self.name]}
        self.known_paths = set()

    def complete(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        time.sleep(self.pause_s)
        self.bodies.append(body)
        wrong = [key for key, value in SAMPLING.items() if body.get(key) != value]
        missing = [key for key in GIVEN if key not in body]
        unknown = sorted(body.keys() - set(contract()["completion_request"]))
        if wrong or missing or unknown:
            return 400, {"error": {"message": f"sampling: {wrong + missing + unknown}"}}
        if body["model"] not in self.models:
            return 404, {"error": {"message": f"The model {body['model']} does not exist."}}
        if len(body["prompt"]) + body["max_tokens"] > self.length:
            return 400, {"error": {"message": "maximum context length"}}
        row = SampledTurn(0, body["prompt"], 0, None, body["max_tokens"], body["seed"])
        stop, heat = frozenset(body["stop_token_ids"]), body["temperature"]
        list(sample(self.models[body["model"]], self.shape, [row], stop, heat))
        choice = {
            "index": 0,
            "text": "",
            "finish_reason": "stop" if row.sampled[-1] in stop else "length",
            "token_ids": row.sampled,
            "prompt_token_ids": body["prompt"],
            "logprobs": {"token_logprobs": row.logprobs},
        }
        assert choice.keys() <= set(contract()["completion_choice"])
        return 200, {"choices": [choice | self.distort]}

    def load(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if body.keys() != {"lora_name", "lora_path"}:
            return 400, {"error": {"message": "in place, or not understood"}}
        name, path = body["lora_name"], body["lora_path"]
        if name in self.models or path in self.known_paths:
            return 400, {"error": {"message": "the lora adapter has already been loaded"}}
        if not Path(path).is_absolute() or not Path(path, "adapter_config.json").is_file():
            return 404, {"error": {"message": f"No adapter found for {path}"}}
        self.loads.append(path)
        self.known_paths.add(path)
        adapted = PeftModel.from_pretrained(copy.deepcopy(self.models[self.name]), path).eval()
        adapted.merge_adapter()
        self.models[name] = adapted
        return 200, {}

    def unload(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        known = self.models.pop(body["lora_name"], None)
        return (404 if known is None else 200), {}

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        """Status and body; None: the connection breaks."""
        with self.lock, torch.inference_mode():
            if self.dies is not None and len(self.bodies) >= self.dies[0]:
                self.die(self.dies[1])
            if self.away:
                self.away -= 1
                return None
            if path == "/v1/models":
                cards = [{"id": name, "max_model_len": self.length} for name in self.models]
                return 200, {"data": cards}
            calls = {"completions": self.complete, "load_lora_adapter": self.load}
            calls["unload_lora_adapter"] = self.unload
            call = calls.get(path.removeprefix("/v1/"))
            return call(body) if call else (200 if path == "/health" else 404, {})


class FakeVllmHandler(BaseHTTPRequestHandler):
    server: FakeVllm
    disable_nagle_algorithm = True
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.respond({})

    def do_POST(self) -> None:
        self.respond(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def respond(self, body: dict[str, Any]) -> None:
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

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(base: Path, **changes: Any) -> Iterator[FakeVllm]:
    """A server that lives as long as the block."""
    with FakeVllm(base, **changes) as fake:
        threading.Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.02}).start()
        try:
            yield fake
        finally:
            fake.shutdown()
