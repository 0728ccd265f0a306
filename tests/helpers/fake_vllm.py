"""A stand-in for servers of vLLM that is stricter than vLLM, and that can die.

It refuses requests without all sampling parameters, and fields that vLLM 0.31 does not have. It
refuses adapters in place, and those under a name or path that was used. It plays one turn after the
other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from helpers.vllm_contract import GIVEN, SAMPLING, contract
from helpers.vllm_stand_in import Answer, StandIn, running

NAME = "base-0123"


class FakeVllm(StandIn):
    """A server of one base model.

    Args:
        base: folder of the model.
        name: served name.
        length: `--max-model-len`.
    """

    def __init__(self, base: Path, name: str = NAME, length: int = 256) -> None:
        super().__init__(base, name, length, batch=1)
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

    def die(self, requests: int) -> None:
        """Give no answer to so many requests, then answer as a server that was started again."""
        self.away, self.dies = requests, None
        self.models = {self.name: self.models[self.name]}
        self.known_paths = set()

    def complete(self, body: dict[str, Any]) -> Answer:
        time.sleep(self.pause_s)
        self.bodies.append(body)
        wrong = [key for key, value in SAMPLING.items() if body.get(key) != value]
        missing = [key for key in GIVEN if key not in body]
        unknown = sorted(body.keys() - set(contract()["completion_request"]))
        if wrong or missing or unknown:
            return 400, {"error": {"message": f"sampling: {wrong + missing + unknown}"}}
        status, found = super().complete(body)
        if status == 200:
            (choice,) = found["choices"]
            assert choice.keys() <= set(contract()["completion_choice"])
            choice |= self.distort
        return status, found

    def load(self, body: dict[str, Any]) -> Answer:
        if body.keys() != {"lora_name", "lora_path"}:
            return 400, {"error": {"message": "in place, or not understood"}}
        name, path = body["lora_name"], body["lora_path"]
        if name in self.models or path in self.known_paths:
            return 400, {"error": {"message": "the lora adapter has already been loaded"}}
        if not Path(path).is_absolute() or not Path(path, "adapter_config.json").is_file():
            return 404, {"error": {"message": f"No adapter found for {path}"}}
        self.loads.append(path)
        self.known_paths.add(path)
        return super().load(body)

    def answer(self, path: str, body: dict[str, Any]) -> Answer | None:
        with self.lock:
            if self.dies is not None and len(self.bodies) >= self.dies[0]:
                self.die(self.dies[1])
            if self.away:
                self.away -= 1
                return None
            return super().answer(path, body)


@contextmanager
def serving(base: Path, **changes: Any) -> Iterator[FakeVllm]:
    """A server that lives as long as the block."""
    with running(FakeVllm(base, **changes)) as fake:
        yield fake
