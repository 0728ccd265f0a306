"""The client's side of the wire: one session, or many on a thread of their own.

`RLMEnv` is the OpenEnv client of this environment. `Sessions` drives many of them for a rollout
engine whose own thread is busy with a model: pings are answered meanwhile. Neither reconnects
inside an episode: a new connection is a new session, in which nothing was reset.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from websockets.exceptions import WebSocketException
from websockets.protocol import State

from env import access
from env.errors import EpisodeError, RefusedError
from env.models import RLMAction, RLMObservation, RLMState

T = TypeVar("T")

MESSAGE_TIMEOUT_S = 600.0
"""Longer than the server's own limits let a step take: `episode_s` of CPU for all cells, and at the
end some seconds of scoring for each frame's answer at worst."""


class RLMEnv(EnvClient[RLMAction, RLMObservation, RLMState]):
    """One session with the environment.

    Args:
        base_url: http:// or ws:// address of the server.
        message_timeout_s: seconds to wait for one answer.
        connect_timeout_s: seconds to wait for a connection.
        options: anything else that OpenEnv's client takes.

    Raises (reset, step, state):
        EpisodeError: the connection or the server failed; the episode is lost.
    """

    def __init__(
        self,
        base_url: str | None = None,
        message_timeout_s: float = MESSAGE_TIMEOUT_S,
        connect_timeout_s: float = 60.0,
        **options: Any,
    ) -> None:
        # A policy may hold the interpreter for seconds at a time: be patient with pongs.
        options.setdefault("websocket_ping_interval_s", 30.0)
        options.setdefault("websocket_ping_timeout_s", 300.0)
        # A private Space opens with a token; it goes nowhere else.
        options.setdefault("headers", access.headers(base_url) if base_url else None)
        super().__init__(
            base_url,
            connect_timeout_s=connect_timeout_s,
            message_timeout_s=message_timeout_s,
            **options,
        )
        self._episode_socket: object | None = None

    async def _reset_async(self, **kwargs: Any) -> StepResult[RLMObservation]:
        self._episode_socket = None
        result = await super()._reset_async(**kwargs)
        self._episode_socket = self._ws
        return result

    async def _step_async(self, action: RLMAction, **kwargs: Any) -> StepResult[RLMObservation]:
        socket = self._episode_socket
        open_ = self._ws is not None and self._ws.state is State.OPEN
        if socket is not None and not (open_ and self._ws is socket):
            raise EpisodeError("the connection was lost during the episode")
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
            # OpenEnv's form of an error message of the server.
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

    Every future resolves to an observation, with EpisodeError when the episode was lost, or with
    RefusedError when the server refused (a mistake of the caller: wrong id, frame not ready).

    Args:
        url: address of the server.
        count: slots; each connects at its first reset.
        message_timeout_s: seconds to wait for one answer.
    """

    def __init__(self, url: str, count: int, message_timeout_s: float = MESSAGE_TIMEOUT_S) -> None:
        self.url = url
        self.count = count
        self._message_timeout_s = message_timeout_s
        self._clients: list[RLMEnv | None] = [None] * count
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sessions", daemon=True)
        self._thread.start()

    def __enter__(self) -> Sessions:
        """The sessions themselves."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
                # A session that the server closed for idleness still answers, and refuses.
                if not (observation.refused and observation.done):
                    return _unless_refused(observation)
            except EpisodeError:
                pass
            await self._discard(slot)
        self._clients[slot] = client = RLMEnv(self.url, message_timeout_s=self._message_timeout_s)
        try:
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
