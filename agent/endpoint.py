"""Any OpenAI-compatible endpoint as a policy: vLLM, llama.cpp, Ollama, or a paid API.

The policy plays in the identical harness as the trained model, with texts only: no token ids and no
log-probs, so it can be measured and can demonstrate, but not be trained. Requests of one call run
side by side. A passing failure is retried for longer than a minute, the term of most quotas; one
that stays makes the turn `error`, which voids the episode; a wrong address, name or key stops at
once. `agent/judge.py` asks through the same
`Endpoint`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from threading import Lock
from typing import Any

import openai
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_exponential_jitter,
)

from agent.errors import PolicyError
from agent.policy import FrameKey, TurnReply, TurnRequest
from agent.settings import GenerationSettings

_PASSING = (openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError)
_WRONG = (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError)


@dataclass
class Usage:
    """What an endpoint was asked for, so far."""

    requests: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def cost(self, prompt_price: float, completion_price: float) -> float:
        """Money, from prices of a million tokens."""
        return (self.prompt_tokens * prompt_price + self.completion_tokens * completion_price) / 1e6


class Endpoint:
    """A model behind an OpenAI-compatible API: asks, retries what may pass, counts.

    Args:
        base_url: such as `http://127.0.0.1:8000/v1`.
        model: the name the endpoint knows.
        api_key: the environment variable OPENAI_API_KEY unless given; local servers need none.
        attempts: tries of one request; the pauses between the default 7 are 63 s together or more.
        timeout_s: seconds one try may take.
        wait_s: most that a pause grows to, and most that is waited because the endpoint asks.
        extra: more fields of the request's body, such as `{"reasoning_effort": "low"}`.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        attempts: int = 7,
        timeout_s: float = 120.0,
        wait_s: float = 60.0,
        extra: dict[str, Any] | None = None,
    ) -> None:
        self.base_url, self.model = base_url, model
        self.usage = Usage()
        self._client = openai.OpenAI(
            base_url=base_url,
            api_key=api_key or os.environ.get("OPENAI_API_KEY") or "none",
            timeout=timeout_s,
            max_retries=0,  # tenacity retries
        )
        self._retrying = Retrying(
            retry=retry_if_exception_type(_PASSING),
            stop=stop_after_attempt(attempts),
            wait=partial(_pause_s, most_s=wait_s),
            reraise=True,
        )
        self._extra = dict(extra or {})
        self._lock = Lock()

    def ask(
        self, talk: Sequence[Mapping[str, str]], *, temperature: float, max_tokens: int, seed: int
    ) -> Any:
        """The first choice of the endpoint's answer to a conversation.

        Raises:
            PolicyError: it refuses the key, or does not know the address or the model.
            openai.OpenAIError: the request was refused, or failed at every try.
        """
        # A copy, because the statistics of a Retrying are kept on it.
        retrying = self._retrying.copy()
        try:
            return retrying(
                self._try, talk, temperature=temperature, max_tokens=max_tokens, seed=seed
            )
        except _WRONG as error:
            raise PolicyError(
                f"{self.base_url} refuses model {self.model!r}: {error}; check the address (it "
                "ends in /v1 mostly), the model's name and OPENAI_API_KEY"
            ) from error
        except openai.OpenAIError:
            with self._lock:
                self.usage.failures += 1
            raise

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _try(
        self, talk: Sequence[Mapping[str, str]], *, temperature: float, max_tokens: int, seed: int
    ) -> Any:
        client: Any = self._client
        try:
            answer = client.chat.completions.create(
                model=self.model,
                messages=talk,
                temperature=temperature,
                max_tokens=max_tokens,
                seed=seed % 2**31,
                extra_body=self._extra,
            )
        except ValueError as error:  # a body that is no JSON
            raise openai.OpenAIError(f"an answer that is no completion: {error}") from error
        with self._lock:
            self.usage.requests += 1
            if (usage := getattr(answer, "usage", None)) is not None:
                self.usage.prompt_tokens += usage.prompt_tokens or 0
                self.usage.completion_tokens += usage.completion_tokens or 0
        return _first_choice(answer)


def _pause_s(state: RetryCallState, most_s: float) -> float:
    """Seconds before the next try: what the endpoint asks for, and a pause that grows on top.

    The growing part differs by chance, so that those who wait together do not return together.
    """
    error = state.outcome.exception() if state.outcome else None
    response = getattr(error, "response", None)
    asked = None if response is None else response.headers.get("retry-after")
    grown: float = wait_exponential_jitter(max=most_s)(state)
    return grown + min(seconds_asked(asked, datetime.now(UTC)), most_s)


def seconds_asked(retry_after: str | None, now: datetime) -> float:
    """Seconds that a header `Retry-After` asks to wait; 0 for none, or one that says nothing.

    Source: RFC 9110, section 10.2.3: whole seconds, or a date. Departure: fractions are taken.
    """
    if retry_after is None:
        return 0.0
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            date = parsedate_to_datetime(retry_after)
        except ValueError:
            return 0.0
        seconds = (date.replace(tzinfo=date.tzinfo or UTC) - now).total_seconds()
    return 0.0 if math.isnan(seconds) else max(0.0, seconds)


def _first_choice(answer: Any) -> Any:
    """The first choice, with a text or none.

    Raises:
        openai.OpenAIError: it is no completion; the client checks no shapes, so that a proxy's
            own words come through as they are.
    """
    try:
        choice = answer.choices[0]
        if isinstance(choice.message.content, str | None):
            return choice
    except (AttributeError, IndexError, TypeError):
        pass
    raise openai.OpenAIError("an answer that is no completion")


class EndpointPolicy:
    """Plays frames with a model behind an OpenAI-compatible API.

    Args:
        base_url: see `Endpoint`.
        model: the name the endpoint knows.
        settings: temperature and `max_turn_tokens`; a frame's own limit is the endpoint's.
        concurrency: requests in flight.
        options: the other arguments of `Endpoint`.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        settings: GenerationSettings,
        *,
        concurrency: int = 16,
        **options: Any,
    ) -> None:
        self.settings = settings
        self._endpoint = Endpoint(base_url, model, **options)
        self._concurrency = concurrency
        self._frames: dict[FrameKey, list[dict[str, str]]] = {}

    @property
    def usage(self) -> Usage:
        """What the endpoint was asked for, so far."""
        return self._endpoint.usage

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        """One turn for each request; a request that keeps failing gets an `error` turn.

        Raises:
            PolicyError: the endpoint refuses the key, or does not know the address or the model.
        """
        with ThreadPoolExecutor(max_workers=self._concurrency) as pool:
            return list(pool.map(self._turn, requests))

    def release(self, keys: Iterable[FrameKey]) -> None:
        """Forget frames that ended."""
        for key in keys:
            self._frames.pop(key, None)

    def close(self) -> None:
        """Close the connections."""
        self._endpoint.close()

    def _turn(self, request: TurnRequest) -> TurnReply:
        if not request.first and request.key not in self._frames:
            raise PolicyError(f"frame {request.key}: its first turn was never played here")
        talk = [] if request.first else self._frames[request.key]
        talk += [{"role": item.role, "content": item.content} for item in request.messages]
        self._frames[request.key] = talk
        try:
            choice = self._endpoint.ask(
                talk,
                temperature=self.settings.temperature,
                max_tokens=self.settings.max_turn_tokens,
                seed=request.seed,
            )
        except openai.OpenAIError:
            return TurnReply(text="", finish="error")
        text = choice.message.content or ""
        talk.append({"role": "assistant", "content": text})
        return TurnReply(text=text, finish="length" if choice.finish_reason == "length" else "stop")
