"""The client's side of the wire: one session, or many in a thread of their own.

`RLMEnv` is the OpenEnv client of this environment. `Sessions` runs many of them for a rollout
engine, and answers pings while the engine's thread is busy with a model. Neither reconnects
during an episode: a new connection is a new session without an episode.
"""

from __future__ import annotations

import env.light_openenv  # noqa: F401  before openenv

# isort: split
import asyncio
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from websockets.exceptions import WebSocketException
from websockets.protocol import State

from env import variables
from env.errors import EpisodeError, RefusedError
from env.models import WIRE_VERSION, RLMAction, RLMObservation, RLMState

T = TypeVar("T")

MESSAGE_TIMEOUT_S = 600.0
"""Longer than a step: the server ends the episode after 300 s, and at the end scores it. Beyond
these are a last cell and sessions that are scored before."""

_same_wire: set[str] = set()
"""Servers whose `WIRE_VERSION` this process has checked."""


def check_wire(url: str, about: Mapping[str, Any]) -> None:
    """Compare a server's `/metadata` with this client.

    Raises:
        RefusedError: the server speaks another version of the wire.
    """
    theirs = about.get("wire_version", "1 (it names none)")
    if theirs != WIRE_VERSION:
        raise RefusedError(
            f"{url} speaks wire version {theirs}, this client {WIRE_VERSION}. "
            "Deploy the environment again from this version of the project."
        )


def _options(url: str) -> dict[str, Any]:
    """Headers, and no proxy to a server of this machine, as for its sockets."""
    here = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    return {"headers": variables.headers(url), "trust_env": not here}


async def _check_server(url: str, timeout_s: float) -> None:
    if url in _same_wire:
        return
    address = f"http{url.removeprefix('ws').removeprefix('http')}/metadata"
    try:
        async with httpx.AsyncClient(**_options(url), timeout=timeout_s) as http:
            about = (await http.get(address)).raise_for_status().json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ConnectionError(f"{address}: {error or type(error).__name__}") from None
    check_wire(url, about)
    _same_wire.add(url)


def _capacity(url: str) -> int | None:
    """Episodes that a server plays at a time; None if it does not say or does not answer."""
    try:
        answer = httpx.get(f"{url.rstrip('/')}/metadata", **_options(url), timeout=60.0)
        most = answer.raise_for_status().json().get("max_sessions")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, AttributeError):
        return None
    return most if isinstance(most, int) else None


class RLMEnv(EnvClient[RLMAction, RLMObservation, RLMState]):
    """One session with the environment.

    Args:
        base_url: http:// or ws:// address of the server.
        message_timeout_s: seconds to wait for one answer.
        options: other arguments of OpenEnv's client.

    Raises (connect):
        ConnectionError: the server does not answer.
        RefusedError: the server speaks another version of the wire.
    Raises (reset, step, state):
        EpisodeError: the connection or the server failed; the episode is lost.
    """

    def __init__(
        self,
        base_url: str | None = None,
        message_timeout_s: float = MESSAGE_TIMEOUT_S,
        **options: Any,
    ) -> None:
        # A policy may block the interpreter for seconds, so pongs may be late.
        options.setdefault("websocket_ping_interval_s", 30.0)
        options.setdefault("websocket_ping_timeout_s", 300.0)
        # The token of a private Space is sent to no other server.
        options.setdefault("headers", variables.headers(base_url) if base_url else None)
        options.setdefault("connect_timeout_s", 60.0)
        super().__init__(base_url, message_timeout_s=message_timeout_s, **options)
        self._episode_socket: object | None = None

    async def _connect_async(self) -> EnvClient[RLMAction, RLMObservation, RLMState]:
        try:
            await super()._connect_async()
        except ConnectionError as error:
            if body := getattr(getattr(error.__cause__, "response", None), "body", None):
                words = body.decode(errors="replace")[:200]
                raise ConnectionError(f"{self.base_url}: {words}") from None
            raise
        try:
            await _check_server(str(self.base_url), self._connect_timeout)
        except (ConnectionError, RefusedError):
            await self.close()
            raise
        return self

    async def _reset_async(self, **kwargs: Any) -> StepResult[RLMObservation]:
        self._episode_socket = None
        # Before other arguments: a log record of this message begins with it and is dropped.
        result = await super()._reset_async(**variables.owner_key(str(self.base_url)), **kwargs)
        self._episode_socket = self._ws
        return result

    async def _step_async(self, action: RLMAction, **kwargs: Any) -> StepResult[RLMObservation]:
        socket = self._episode_socket
        open_ = self._ws is not None and self._ws.state is State.OPEN
        if socket is not None and not (open_ and self._ws is socket):
            why = getattr(socket, "close_reason", None) or "by the network"
            raise EpisodeError(f"the connection was lost during the episode ({why})")
        return await super()._step_async(action, **kwargs)

    async def _send_and_receive(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            return await super()._send_and_receive(message)
        except TimeoutError:
            raise EpisodeError(
                f"no answer from {self.base_url} within {self._message_timeout:g} s"
            ) from None
        except (WebSocketException, OSError) as error:
            raise EpisodeError(
                f"the connection to {self.base_url} failed: {error or type(error).__name__}"
            ) from error
        except RuntimeError as error:
            # OpenEnv raises this for an error message of the server.
            raise EpisodeError(f"{self.base_url}: {error}") from error

    def _step_payload(self, action: RLMAction) -> dict[str, Any]:
        return action.model_dump(exclude_defaults=True)

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[RLMObservation]:
        reward, done = payload.get("reward"), bool(payload.get("done", False))
        observation = RLMObservation.model_validate(
            {**payload.get("observation", {}), "reward": reward, "done": done}
        )
        return StepResult(observation=observation, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> RLMState:
        return RLMState.model_validate(payload)


class Sessions:
    """Many sessions, numbered by slot, on an event loop in a daemon thread.

    Every future gives an observation or raises. EpisodeError: the episode was lost. RefusedError:
    the server refused a mistake of the caller (wrong id, frame not ready).

    A server that plays fewer episodes at a time gets fewer slots: `count` says how many.

    Args:
        url: address of the server.
        count: slots wanted; each connects at its first reset.
        message_timeout_s: seconds to wait for one answer.
    """

    def __init__(self, url: str, count: int, message_timeout_s: float = MESSAGE_TIMEOUT_S) -> None:
        self.url = url
        self.count = count = min(count, _capacity(url) or count)
        self._message_timeout_s = message_timeout_s
        self._clients: list[RLMEnv | None] = [None] * count
        self._loop = asyncio.new_event_loop()
        self._checking = asyncio.Lock()  # one session asks, the others wait for the answer
        self._thread = threading.Thread(target=self._loop.run_forever, name="sessions", daemon=True)
        self._thread.start()

    def __enter__(self) -> Sessions:
        """Return the sessions themselves."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()

    def reset(self, slot: int, **kwargs: Any) -> Future[RLMObservation]:
        """Start an episode: `problem_id=`, or `split=`, `difficulty=` and `seed=`."""
        return self._submit(self._reset(slot, kwargs))

    def step(self, slot: int, action: RLMAction) -> Future[RLMObservation]:
        """Send one action of the slot's episode."""
        return self._submit(self._step(slot, action))

    def close(self) -> None:
        """Close every connection and end the thread."""
        if self._loop.is_closed():
            return
        self._submit(self._close_all()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _reset(self, slot: int, kwargs: dict[str, Any]) -> RLMObservation:
        client = self._clients[slot]
        if client is not None:
            try:
                observation: RLMObservation = (await client.reset(**kwargs)).observation
                # A session that the server closed as idle still answers, with a refusal.
                if not (observation.refused and observation.done):
                    return _unless_refused(observation)
            except EpisodeError:
                pass
            await self._discard(slot)
        self._clients[slot] = client = RLMEnv(self.url, message_timeout_s=self._message_timeout_s)
        try:
            async with self._checking:
                await _check_server(self.url.rstrip("/"), timeout_s=60.0)
            await client.connect()
            return _unless_refused((await client.reset(**kwargs)).observation)
        except ConnectionError as error:
            raise EpisodeError(f"no connection to {self.url}: {error}") from error

    async def _step(self, slot: int, action: RLMAction) -> RLMObservation:
        client = self._clients[slot]
        if client is None:
            raise EpisodeError(f"slot {slot} has no connection: reset it first")
        try:
            return _unless_refused((await client.step(action)).observation)
        except EpisodeError:
            await self._discard(slot)
            raise

    async def _discard(self, slot: int) -> None:
        client, self._clients[slot] = self._clients[slot], None
        if client is not None:
            await client.close()

    async def _close_all(self) -> None:
        await asyncio.gather(
            *(self._discard(slot) for slot in range(self.count)), return_exceptions=True
        )


def _unless_refused(observation: RLMObservation) -> RLMObservation:
    if observation.refused is not None and observation.void is None:
        raise RefusedError(observation.refused)
    return observation
