"""Servers of vLLM that sample turns: their command line, and a client of their HTTP interface.

A server runs in an environment of its own, because vLLM's requirements exclude this project's. So
nothing here imports vLLM. Neighbours: `policy.py` plays, `adapter_sync.py` sends the weights,
`tasks/deployment/engine.py` starts a server.

Source: vLLM 0.31.0 (`entrypoints/openai`, `entrypoints/serve/lora`).
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from agent.errors import PolicyError
from agent.settings import EngineSettings

MODULE = "vllm.entrypoints.cli.main"
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
_HEALTH_S = 3.0
"""Longest wait for the answer of `/health`."""
_POLL_S = 0.5
_IDLE_S = 3.0
"""A kept connection is used again for so long; vLLM closes it after five seconds."""


class EngineLostError(RuntimeError):
    """A server does not answer, failed, or lacks the adapter; its episodes are void."""


@dataclass(frozen=True)
class Engine:
    """Servers of a training, and the model at each."""

    urls: list[str]
    model: str
    """Name of the base in requests; it has the hash of the base."""
    command: str
    """Command that starts such a server, for messages."""


@dataclass(frozen=True)
class ServedAdapter:
    """An adapter in a folder that the servers can read."""

    name: str
    path: str


def serve_arguments(
    model: Path,
    name: str,
    settings: EngineSettings,
    *,
    port: int,
    dtype: str,
    frame_tokens: int,
    rank: int,
) -> list[str]:
    """Arguments of `vllm serve`.

    Args:
        model: folder of the model.
        name: name of the model in requests.
        settings: memory of the keys and values.
        port: port on the loopback interface.
        dtype: number format of the weights; `auto` is that of the folder.
        frame_tokens: most tokens of a conversation.
        rank: rank of the adapters, at most 512.
    """
    most_rank = min(value for value in LORA_RANKS if value >= rank)
    options = {
        "served-model-name": name,
        "host": "127.0.0.1",
        "port": port,
        "dtype": dtype,
        "max-model-len": frame_tokens,
        "kv-cache-memory-bytes": int(settings.kv_gb * 2**30),
        "max-lora-rank": most_rank,
        "max-loras": 1,
        # The log-probabilities of the distribution that is sampled: after the temperature.
        "logprobs-mode": "processed_logprobs",
        # No sampling parameter comes from the model's folder.
        "generation-config": "vllm",
    }
    flags = ["--enable-lora", "--enable-prefix-caching", "--disable-uvicorn-access-log"]
    texts = [text for key, value in options.items() for text in (f"--{key}", str(value))]
    return ["serve", str(model), *texts, *flags]


class VllmServer:
    """Client of one server; threads can share it.

    Args:
        url: address without a path, such as `http://127.0.0.1:8000`.
        command: command that starts such a server, for messages.
        settings: limits of requests.
    """

    def __init__(self, url: str, command: str, settings: EngineSettings) -> None:
        self.url = url.rstrip("/")
        self._command = command
        self.lost = ""
        """Reason of the last failure, while the server counts as lost."""
        self._client = httpx.Client(
            base_url=self.url,
            timeout=httpx.Timeout(settings.timeout_s, connect=10.0),
            limits=httpx.Limits(max_connections=settings.concurrency, keepalive_expiry=_IDLE_S),
            trust_env=False,
        )

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """The first choice of a completion.

        Raises:
            EngineLostError: the server is lost, lacks the adapter, or failed.
            PolicyError: it refuses the request.
        """
        answer = self._post("/v1/completions", body)
        try:
            return dict(answer.json()["choices"][0])
        except (ValueError, LookupError, TypeError):
            raise PolicyError(f"{self.url}: the answer is not a completion of vLLM.") from None

    def load(self, adapter: ServedAdapter) -> None:
        """Load an adapter under a new name; without effect if it is loaded.

        Its folder must be new, too: with the path of an earlier adapter, vLLM would use keys and
        values of the earlier weights.

        Raises:
            EngineLostError: the server is lost.
            PolicyError: it cannot load adapters, or not this one.
        """
        if adapter.name in self.names():
            return
        body = {"lora_name": adapter.name, "lora_path": adapter.path}
        try:
            self._post("/v1/load_lora_adapter", body)
        except (EngineLostError, PolicyError) as error:
            # Another rank may have been faster; a lost server raises here.
            if adapter.name not in self.names():
                raise PolicyError(
                    f"{self.url} cannot load the adapter {adapter.path} ({error}). Start the "
                    f"server where this folder can be read: {self._command}"
                ) from None

    def unload(self, adapter: ServedAdapter) -> None:
        """Forget an adapter, if the server is there and knows it."""
        with suppress(EngineLostError, PolicyError):
            self._post("/v1/unload_lora_adapter", {"lora_name": adapter.name})

    def models(self) -> list[dict[str, Any]]:
        """The base model and the loaded adapters.

        Raises:
            EngineLostError: the server is lost or answers something else.
        """
        try:
            answer = self._client.get("/v1/models", timeout=10.0)
            return [dict(card) for card in answer.raise_for_status().json()["data"]]
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise EngineLostError(f"{self.url}: {_words(error)}") from None

    def names(self) -> list[str]:
        """Names of the base model and the loaded adapters; see `models`."""
        return [str(card.get("id")) for card in self.models()]

    def healthy(self) -> bool:
        """Whether the server is up and its engine works."""
        try:
            return self._client.get("/health", timeout=_HEALTH_S).is_success
        except httpx.HTTPError:
            return False

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        try:
            answer = self._client.post(path, json=body)
        except httpx.HTTPError as error:
            raise EngineLostError(f"{self.url}: {_words(error)}") from None
        if answer.is_success:
            return answer
        words = f"{self.url}{path}: {answer.status_code} {' '.join(answer.text.split())[:400]}"
        # 404: a server that was started again has no adapter yet.
        if answer.status_code >= 500 or answer.status_code == 404:
            raise EngineLostError(words)
        raise PolicyError(f"{words}. Use vLLM 0.31.0 and start it so: {self._command}")


class VllmServers:
    """All servers of a training.

    An episode stays with one server, which has its prefixes in the cache. A server that fails
    counts as lost until it is healthy and has the adapter.

    Args:
        engine: the servers.
        settings: limits of requests and waits.
    """

    def __init__(self, engine: Engine, settings: EngineSettings) -> None:
        self.engine = engine
        self.adapter: ServedAdapter | None = None
        """The adapter in force."""
        self._away_s = settings.away_s
        self._servers = [VllmServer(url, engine.command, settings) for url in engine.urls]

    def check(self, frame_tokens: int) -> None:
        """Check that each server has the model, for conversations of so many tokens.

        Raises:
            PolicyError: a server does not answer, or has another model.
        """
        model = self.engine.model
        for server in self._servers:
            try:
                cards = {str(card.get("id")): card for card in server.models()}
            except EngineLostError as error:
                raise PolicyError(f"{error}. Correct engine.urls or start the server.") from None
            if model not in cards:
                raise PolicyError(
                    f"{server.url} serves {', '.join(cards) or 'no model'}, but the present base "
                    f"is {model}. Start the server so: {self.engine.command}"
                )
            length = cards[model].get("max_model_len")
            if not isinstance(length, int) or length < frame_tokens:
                raise PolicyError(
                    f"{server.url} allows {length} tokens, but a frame may have {frame_tokens}. "
                    f"Start the server so: {self.engine.command}"
                )

    def serve(self, adapter: ServedAdapter) -> None:
        """Load an adapter on all servers, make it the one in force, and unload the former.

        A lost server gets it when it is back.

        Raises:
            PolicyError: a server refuses the adapter, or all are lost.
        """
        former, self.adapter = self.adapter, adapter
        for server in self._servers:
            self._restore(server)
        self.present()
        if former is not None:
            for server in self._servers:
                server.unload(former)

    def present(self) -> list[VllmServer]:
        """Servers that are not lost, at least one; all that were lost are tried again.

        Raises:
            PolicyError: all stay away longer than `away_s`.
        """
        until = time.monotonic() + self._away_s
        while True:
            for server in self._servers:
                if server.lost:
                    self._restore(server)
            if found := [server for server in self._servers if not server.lost]:
                return found
            if time.monotonic() > until:
                reasons = "; ".join(server.lost for server in self._servers)
                raise PolicyError(
                    f"no engine has answered for {self._away_s:g} s ({reasons}). Start the "
                    "servers of engine.urls, if it names any, and run the same command to resume."
                )
            time.sleep(_POLL_S)

    def _restore(self, server: VllmServer) -> None:
        """Load the adapter in force, unless the server is lost."""
        try:
            if not server.healthy():
                raise EngineLostError(f"{server.url}: not healthy")
            if self.adapter is not None:
                server.load(self.adapter)
        except EngineLostError as error:
            server.lost = str(error)
        else:
            server.lost = ""

    def close(self) -> None:
        """Close the connections."""
        for server in self._servers:
            server.close()


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
