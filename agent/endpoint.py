"""Any OpenAI-compatible endpoint as a policy: vLLM, llama.cpp, Ollama, or a paid API.

The policy plays in the identical harness as the trained model, with texts only: no token ids and no
log-probs, so it can be measured and can demonstrate, but not be trained. Requests of one call run
side by side. A passing failure is retried for longer than a minute, the term of most quotas; one
that stays makes the turn `error`, which voids the episode. What no waiting mends stops at once with
the endpoint's own words: a wrong address, name or key, an empty account, an endpoint that is gone.
`agent/judge.py` asks through the same `Endpoint`.
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
from urllib.parse import urlsplit

import openai
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    wait_exponential_jitter,
)

from agent.errors import PolicyError
from agent.policy import FrameKey, TurnReply, TurnRequest
from agent.settings import GenerationSettings

_PASSING = (openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError)
_WRONG = frozenset({401, 402, 403, 404})
"""Statuses of a wrong key, an empty account, a right not given, an unknown address or model."""
_EMPTY = "insufficient_quota"
"""What OpenAI calls an empty account, with the status 429 of a quota that passes."""
_SHOWN = 400
"""Characters of an endpoint's words in a message."""
_HELLO = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "Say yes."}]
"""A first question, in the roles of a frame's."""


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
        gone_after: requests lost in a row, at all their tries, after which none is made any more;
            None: each is tried for itself.
        extra: more fields of the request's body, such as `{"reasoning_effort": "low"}`.

    Raises:
        PolicyError: `base_url` is no address.
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
        gone_after: int | None = 16,
        extra: dict[str, Any] | None = None,
    ) -> None:
        _require_address(base_url)
        self.base_url, self.model = base_url, model
        self.usage = Usage()
        self.trouble = ""
        """Why the last request that was lost was lost, in the endpoint's words."""
        self._lost_in_a_row = 0
        self._gone_after = math.inf if gone_after is None else gone_after
        # A key read from a file ends in a line break, which no header may hold.
        self._key = (api_key or os.environ.get("OPENAI_API_KEY") or "").strip()
        self._client = openai.OpenAI(
            base_url=base_url,
            api_key=self._key or "none",
            timeout=timeout_s,
            max_retries=0,  # tenacity retries
        )
        self._retrying = Retrying(
            retry=retry_if_exception(_may_pass),
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
            PolicyError: it refuses the key or the account, does not know the address or the
                model, or has lost so many requests in a row that it is gone.
            openai.OpenAIError: the request was refused, or failed at every try.
        """
        self._require_there()
        # A copy, because the statistics of a Retrying are kept on it.
        return self._ask(self._retrying.copy(), talk, temperature, max_tokens, seed)

    def _ask(
        self,
        retrying: Retrying,
        talk: Sequence[Mapping[str, str]],
        temperature: float,
        max_tokens: int,
        seed: int,
    ) -> Any:
        try:
            return retrying(
                self._try, talk, temperature=temperature, max_tokens=max_tokens, seed=seed
            )
        except openai.OpenAIError as error:
            with self._lock:
                self.usage.failures += 1
                self.trouble = self._words(error)
                self._lost_in_a_row += 1
            if _is_wrong(error):
                raise PolicyError(
                    f"{self.base_url} refuses model {self.model!r}: {self._words(error)}; check "
                    "the address (it ends in /v1 mostly), the model's name, OPENAI_API_KEY and "
                    "the account"
                ) from None
            self._require_there()
            raise

    def check(
        self, talk: Sequence[Mapping[str, str]], *, temperature: float, max_tokens: int
    ) -> None:
        """Ask once, so that a wrong setting stops before anything is played.

        Where nothing answers at all, the address is wrong or the server not started: that is
        tried twice.

        Raises:
            PolicyError: it refuses the request, key or account, or does not know the address or
                the model.
            openai.OpenAIError: it gives no answer, which may pass.
        """
        patience = self._retrying.stop

        def stop(state: RetryCallState) -> bool:
            error = state.outcome.exception() if state.outcome else None
            nobody = isinstance(error, openai.APIConnectionError) and state.attempt_number >= 2
            return nobody or patience(state)

        try:
            self._ask(self._retrying.copy(stop=stop), talk, temperature, max_tokens, 0)
        except openai.APIStatusError as error:
            if _may_pass(error):
                raise
            raise PolicyError(
                f"{self.base_url} refuses a first question to model {self.model!r}: "
                f"{self._words(error)}; the model must take system messages and the fields "
                "temperature, max_tokens and seed: choose another one, or ask it through a proxy "
                "that translates them"
            ) from None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _require_there(self) -> None:
        """Raise a PolicyError once it has answered nothing for long."""
        if self._lost_in_a_row >= self._gone_after:
            raise PolicyError(
                f"{self.base_url} gives no more turns: {self._lost_in_a_row} requests in a row "
                f"were lost, the last: {self.trouble}; mend that, then run again"
            )

    def _words(self, error: openai.OpenAIError) -> str:
        """What the endpoint said, in one line, without the key."""
        said = str(error)
        if (cause := error.__cause__) and str(cause):
            said += f" ({cause})"
        elif (body := getattr(error, "body", None)) and " - " not in said:
            said += f" - {body}"  # not in OpenAI's form
        if self._key:
            said = said.replace(self._key, "***")
        return " ".join(said.split())[:_SHOWN]

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
        choice = _first_choice(answer)
        with self._lock:
            self._lost_in_a_row = 0
        return choice


def _require_address(base_url: str) -> None:
    try:
        parts = urlsplit(base_url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is none
        good = False
    if not good:
        raise PolicyError(
            f"{base_url!r} is no address of an endpoint; write one such as http://127.0.0.1:8000/v1"
        )


def _is_wrong(error: BaseException) -> bool:
    """Whether neither waiting nor another prompt helps: key, account, address or name."""
    return isinstance(error, openai.APIStatusError) and (
        error.status_code in _WRONG or _EMPTY in (error.code, error.type)
    )


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, _PASSING) and not _is_wrong(error)


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

    @property
    def trouble(self) -> str:
        """Why the last turn that was lost was lost, in the endpoint's words; empty if none was."""
        return self._endpoint.trouble

    def check(self) -> None:
        """Ask once, so that a wrong setting stops before anything is played.

        Raises:
            PolicyError: the endpoint refuses, or gives no answer.
        """
        limit = self.settings.max_turn_tokens
        try:
            self._endpoint.check(_HELLO, temperature=self.settings.temperature, max_tokens=limit)
        except openai.OpenAIError:
            raise PolicyError(
                f"{self._endpoint.base_url} does not answer: {self.trouble}; start it, or mend "
                "the address"
            ) from None

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        """One turn for each request; a request that keeps failing gets an `error` turn.

        Raises:
            PolicyError: see `Endpoint.ask`.
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
