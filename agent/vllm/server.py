"""A server of vLLM that samples turns: its command line, and a client of its HTTP interface.

You start the server, in an environment of its own, because vLLM's requirements exclude this
project's. So nothing here imports vLLM. Neighbours: `policy.py` plays, `rollouts/players.py` sends
the weights.

Source: vLLM 0.31.0 (`entrypoints/openai`, `entrypoints/serve/lora`).
"""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from agent.errors import PolicyError
from agent.models.model_files import TWIN
from agent.settings import EngineSettings

PROGRAM = ".venv-vllm/bin/vllm"
"""Where `make setup-vllm` installs it."""
ENVIRONMENT = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_HOST_IP": "127.0.0.1",  # its processes talk to each other on loopback, too
}
"""Environment variables of a server."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of `--max-lora-rank`; an adapter's rank may be lower."""
ADAPTERS = ".adapters"
"""Name of the folder of sent adapters, beside the checkpoints."""
_KV_GB = 8
"""GiB of keys and values on the GPU, beside the weights of a trainer."""
CONCURRENCY = 64
"""Turns in flight."""
_TURN_S = 600.0
"""Seconds of one turn."""
_LOOK_S = 10.0
"""Longest wait for an answer that samples nothing."""
_IDLE_S = 3.0
"""A kept connection is used again for so long; vLLM closes it after five seconds."""


class EngineLostError(RuntimeError):
    """The server does not answer, failed, or lacks the adapter; the turn's episode is void."""


@dataclass(frozen=True)
class Engine:
    """The server of a training, and the model on it."""

    url: str
    """Address without a path, such as `http://127.0.0.1:8000`."""
    model: str
    """Name of the base in requests; it has the hash of the base."""
    command: str
    """Command that starts such a server, for messages."""


def engine_of(
    settings: EngineSettings, rank: int, frame_tokens: int, base: Path, base_hash: str
) -> Engine | None:
    """The engine that the settings name; None if the model in training plays itself.

    Args:
        settings: the section `engine`.
        rank: of the adapter.
        frame_tokens: tokens of one frame's conversation.
        base: folder of the base model.
        base_hash: its hash, which is part of the served name.
    """
    if settings.url is None:
        return None
    # Of a 4-bit base, vLLM serves the twin.
    model = base / TWIN if (base / TWIN).is_dir() else base
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    positions = config.get("text_config", config).get("max_position_embeddings")
    name = f"base-{base_hash}"
    options = {
        "served-model-name": name,
        "host": "127.0.0.1",
        "port": urlsplit(settings.url).port or 8000,
        # vLLM would round float32 to 16 bits, but the trainer does not.
        "dtype": "float32"
        if "float32" in (config.get("dtype"), config.get("torch_dtype"))
        else "auto",
        "max-model-len": min(frame_tokens, positions or frame_tokens),
        "kv-cache-memory-bytes": _KV_GB << 30,
        "max-lora-rank": min(value for value in LORA_RANKS if value >= rank),
        "max-loras": 1,
        # The log-probabilities of the distribution that is sampled: after the temperature.
        "logprobs-mode": "processed_logprobs",
        # No sampling parameter comes from the model's folder.
        "generation-config": "vllm",
    }
    flags = ["--enable-lora", "--enable-prefix-caching", "--disable-uvicorn-access-log"]
    texts = [text for key, value in options.items() for text in (f"--{key}", str(value))]
    variables = " ".join(f"{key}={value}" for key, value in ENVIRONMENT.items())
    command = shlex.join([PROGRAM, "serve", str(model.resolve()), *texts, *flags])
    return Engine(settings.url.rstrip("/"), name, f"{variables} {command}")


class VllmServer:
    """Client of the server; threads can share it.

    Args:
        engine: the server.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.adapter: Path | None = None
        """Folder of the adapter in force, which is served under the folder's name."""
        self._client = httpx.Client(
            base_url=engine.url,
            timeout=httpx.Timeout(_TURN_S, connect=_LOOK_S),
            limits=httpx.Limits(max_connections=CONCURRENCY, keepalive_expiry=_IDLE_S),
            trust_env=False,
        )

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """The first choice of a completion of the adapter in force, or else of the base.

        Raises:
            EngineLostError: the server is lost, lacks the adapter, or failed.
            PolicyError: it refuses the request.
        """
        name = self.adapter.name if self.adapter else self.engine.model
        answer = self._ask("POST", "/v1/completions", json={"model": name, **body})
        try:
            return dict(answer.json()["choices"][0])
        except (ValueError, LookupError, TypeError):
            raise PolicyError(f"{self.engine.url}: the answer is no completion of vLLM.") from None

    def check(self, frame_tokens: int) -> None:
        """Check that the server has the base, for conversations of so many tokens.

        Raises:
            PolicyError: it does not answer, or has another model.
        """
        engine, cards = self.engine, self._models()
        if engine.model not in cards:
            raise PolicyError(
                f"{engine.url} serves {', '.join(cards) or 'no model'}, but the present base is "
                f"{engine.model}. {self._start}"
            )
        length = cards[engine.model].get("max_model_len")
        if not isinstance(length, int) or length < frame_tokens:
            raise PolicyError(
                f"{engine.url} allows {length} tokens, but a frame may have {frame_tokens}. "
                f"{self._start}"
            )

    def serve(self, adapter: Path) -> None:
        """Load an adapter, make it the one in force, and unload the former.

        Folder and name must be new: with those of an earlier adapter, vLLM would use keys and
        values of the earlier weights.

        Raises:
            PolicyError: the server does not answer, or cannot load adapters or this one.
        """
        former, self.adapter = self.adapter, adapter
        self.restore()
        if former is not None:
            with suppress(EngineLostError, PolicyError):
                self._ask("POST", "/v1/unload_lora_adapter", json={"lora_name": former.name})

    def restore(self) -> None:
        """Load the adapter in force, unless the server has it.

        Raises:
            PolicyError: the server does not answer, or cannot load the adapter.
        """
        if (adapter := self.adapter) is None or adapter.name in self._models():
            return
        body = {"lora_name": adapter.name, "lora_path": str(adapter)}
        try:
            self._ask("POST", "/v1/load_lora_adapter", json=body)
        except EngineLostError as error:
            raise PolicyError(
                f"{self.engine.url} cannot load the adapter {adapter} ({error}). It must be able "
                f"to read this folder. {self._start}"
            ) from None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _models(self) -> dict[str, dict[str, Any]]:
        """The base and the loaded adapters by name, of a server whose engine works.

        Raises:
            PolicyError: the server does not answer, or answers something else.
        """
        try:
            self._ask("GET", "/health", timeout=_LOOK_S)
            answer = self._ask("GET", "/v1/models", timeout=_LOOK_S)
            return {str(card["id"]): dict(card) for card in answer.json()["data"]}
        except (EngineLostError, ValueError, LookupError, TypeError) as error:
            raise PolicyError(
                f"no server of vLLM answers at engine.url ({error}). {self._start}"
            ) from None

    @property
    def _start(self) -> str:
        return f"Start it so, then run the same command again to resume:\n{self.engine.command}"

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = self._client.request(method, path, **options)
        except httpx.HTTPError as error:
            words = f"{self.engine.url}: {type(error).__name__}: {error}"
            raise EngineLostError(words.rstrip(": ")) from None
        if answer.is_success:
            return answer
        words = (
            f"{self.engine.url}{path}: {answer.status_code} {' '.join(answer.text.split())[:400]}"
        )
        # 404: a server that was started again has no adapter yet.
        if answer.status_code >= 500 or answer.status_code == 404:
            raise EngineLostError(words)
        raise PolicyError(f"{words}. Use vLLM 0.31.0. {self._start}")
