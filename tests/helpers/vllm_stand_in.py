"""A stand-in for a server of vLLM: its HTTP interface, with a small model on the CPU.

It answers what `agent/vllm/server.py` asks. Concurrent requests are sampled together, but
it has no prefix cache: a turn reads its whole conversation.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import torch
from peft import PeftModel

from agent.decoding.row_buffer import CacheShape
from agent.decoding.sampling import SampledTurn, sample
from agent.policies.hf_policy import load_model
from agent.vllm.server import Engine

GATHER_S = 0.01
"""Wait for one more request before a batch is sampled."""

Answer = tuple[int, dict[str, Any]]
"""Status and body."""


@dataclass(frozen=True, eq=False)
class WaitingTurn:
    """A request whose turn is not sampled yet."""

    row: SampledTurn
    how: tuple[Any, frozenset[int], float]
    """Model, ids that end the turn, temperature; equal ones are sampled together."""
    done: threading.Event = field(default_factory=threading.Event)


class StandIn(ThreadingHTTPServer):
    """A server of one base model and its adapters.

    Args:
        base: folder of the model.
        name: served name.
        length: `--max-model-len`.
        batch: most turns that are sampled together.
        noise: relative standard deviation of the error of each weight. Errors are the same for the
            base and all adapters, as those of an engine with other arithmetic are.
    """

    daemon_threads = True
    request_queue_size = 1024

    def __init__(
        self, base: Path, name: str, length: int, *, batch: int = 64, noise: float = 0.0
    ) -> None:
        super().__init__(("127.0.0.1", 0), StandInHandler)
        self.name, self.length = name, length
        self._batch, self._noise = batch, noise
        self._base, _ = load_model(base, device="cpu")
        self._shape = CacheShape.of(self._base)
        self.models: dict[str, Any] = {name: self._inexact(self._base)}
        """Base and adapters by name."""
        self._queue: SimpleQueue[WaitingTurn | None] = SimpleQueue()
        threading.Thread(target=self._sample_batches, daemon=True).start()

    @property
    def url(self) -> str:
        """Address without a path."""
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def engine(self) -> Engine:
        """The server as a training sees it."""
        return Engine([self.url], self.name, "vllm serve base")

    def answer(self, path: str, body: dict[str, Any]) -> Answer | None:
        """Answer a request; None breaks the connection."""
        if path == "/v1/models":
            cards = [{"id": name, "max_model_len": self.length} for name in self.models]
            return 200, {"data": cards}
        calls: dict[str, Callable[[dict[str, Any]], Answer]] = {
            "/v1/completions": self.complete,
            "/v1/load_lora_adapter": self.load,
            "/v1/unload_lora_adapter": self.unload,
        }
        call = calls.get(path)
        return call(body) if call else (200 if path == "/health" else 404, {})

    def complete(self, body: dict[str, Any]) -> Answer:
        """Sample a turn after the ids of the prompt."""
        if body["model"] not in self.models:
            return 404, {"error": {"message": f"The model {body['model']} does not exist."}}
        if len(body["prompt"]) + body["max_tokens"] > self.length:
            return 400, {"error": {"message": "maximum context length"}}
        row = SampledTurn(0, body["prompt"], 0, None, body["max_tokens"], body["seed"])
        stop_ids = frozenset(body["stop_token_ids"])
        turn = WaitingTurn(row, (self.models[body["model"]], stop_ids, body["temperature"]))
        self._queue.put(turn)
        turn.done.wait()
        if not row.done:
            return 500, {"error": {"message": "the turn was not sampled"}}
        choice = {
            "index": 0,
            "text": "",
            "finish_reason": "stop" if row.sampled[-1] in stop_ids else "length",
            "token_ids": row.sampled,
            "prompt_token_ids": body["prompt"],
            "logprobs": {"token_logprobs": row.logprobs},
        }
        return 200, {"choices": [choice]}

    def load(self, body: dict[str, Any]) -> Answer:
        """Load an adapter from a folder."""
        adapted = PeftModel.from_pretrained(copy.deepcopy(self._base), body["lora_path"])
        self.models[body["lora_name"]] = self._inexact(adapted.merge_and_unload().eval())
        return 200, {}

    def unload(self, body: dict[str, Any]) -> Answer:
        """Forget an adapter."""
        known = self.models.pop(body["lora_name"], None)
        return (404 if known is None else 200), {}

    @torch.no_grad()
    def _inexact(self, model: Any) -> Any:
        """The model with errors in its matrices."""
        if not self._noise:
            return model
        wrong = copy.deepcopy(model)
        generator = torch.Generator().manual_seed(0)
        for weight in wrong.parameters():
            if weight.ndim > 1:
                weight.mul_(1 + self._noise * torch.randn(weight.shape, generator=generator))
        return wrong

    def _sample_batches(self) -> None:
        """Sample what is asked until the server ends."""
        while (first := self._queue.get()) is not None:
            turns = [first, *_more(self._queue, self._batch - 1)]
            for how in {turn.how for turn in turns}:
                alike = [turn for turn in turns if turn.how == how]
                try:
                    self._sample(alike)
                finally:
                    for turn in alike:
                        turn.done.set()

    def _sample(self, turns: Sequence[WaitingTurn]) -> None:
        """Sample turns of one model together; each is answered when it ends."""
        model, stop_ids, temperature = turns[0].how
        asking = {id(turn.row): turn for turn in turns}
        rows = [turn.row for turn in turns]
        for row in sample(model, self._shape, rows, stop_ids, temperature):
            asking[id(row)].done.set()

    def server_close(self) -> None:
        """End the sampling, and close the socket."""
        self._queue.put(None)
        super().server_close()


def _more(queue: SimpleQueue[WaitingTurn | None], most: int) -> Iterator[WaitingTurn]:
    """Requests that arrive one shortly after the other."""
    for _ in range(most):
        try:
            turn = queue.get(timeout=GATHER_S)
        except Empty:
            return
        if turn is None:
            queue.put(None)
            return
        yield turn


class StandInHandler(BaseHTTPRequestHandler):
    """One connection."""

    server: StandIn
    disable_nagle_algorithm = True
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer."""
        self._respond({})

    def do_POST(self) -> None:
        """Answer a request with a JSON body."""
        self._respond(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def _respond(self, body: dict[str, Any]) -> None:
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
        """Log nothing."""


Server = TypeVar("Server", bound=StandIn)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """The server, which answers as long as the block lasts."""
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
