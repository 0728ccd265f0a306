"""Policy of an OpenAI-compatible endpoint: vLLM, llama.cpp, Ollama or a paid API.

It plays in the same harness as the trained model, but with texts only. Without token ids and
log-probabilities it can be measured, not trained. The requests of a call run in parallel. A
transient failure is retried for a minute, the period of most quotas. A lasting one makes the turn
`error`, which voids the episode. Errors that retrying cannot fix stop the run with the endpoint's
message: a wrong address, model or key, an empty account, a dead endpoint.
"""

from __future__ import annotations

import logging
import os
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import Future, wait
from copy import copy
from dataclasses import dataclass
from threading import Event, Lock, Semaphore, Thread
from typing import Any, Literal
from urllib.parse import urlsplit

import openai

from agent.errors import PolicyError, StoppedError
from agent.policies.base import FrameKey, TurnReply, TurnRequest
from agent.policies.bounded_client import EMPTY, BoundedClient
from agent.policies.fences import in_grammar
from agent.settings import GenerationSettings, refuse_password
from env.chat_tokens import without_thought

_PERMANENT = frozenset({401, 402, 403, 404})
"""Statuses of a wrong key, an empty account, a missing permission, a wrong address or model."""
_LOADING = 503
"""Status of a server that loads its model."""
_GONE_AFTER = 16
"""Consecutive lost requests after which the endpoint counts as dead."""
_CHECKED = 3
"""Tries of a test question, since a wrong address should be told soon."""
_SHOWN = 400
"""Characters of an endpoint's message that are shown."""
_MOST_TOKENS = 10**9
"""Tokens of one answer that are believed; a float has no room for every integer."""
_HELLO = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "Say yes."}]
"""Test question, in the roles of a frame's first prompt."""
_NOTICE_S = 0.2
"""Seconds until a call notices that its result is no longer wanted."""
_UNCUT = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Fields by which vLLM and SGLang sample from the whole distribution, as training does.

Such a server takes a field that a request leaves out from the model's generation_config.json.
"""
_OPTIONAL = ("max_tokens", "max_completion_tokens", *_UNCUT, "top_p", "seed", "temperature")
"""Fields that a request can do without, in the order in which a refusal is read."""
_CUTS = {
    "length": "its turn reached generation.max_turn_tokens",
    "content_filter": "the endpoint's content filter stopped its turn",
}
_THOUGHTS = ("reasoning_content", "reasoning")
"""Fields in which servers return a thought beside the text."""
_ROLES = re.compile(
    r"must alternate|system (role|message|prompt)|developer instruction|support 'system", re.I
)
"""What chat templates say that know no role `system`."""
_LENGTH = re.compile(
    "context|too long|too many tokens|token count|number of tokens|max_new_tokens", re.I
)
"""What servers say of a conversation that exceeds the model's context."""
_LOG = logging.getLogger(__name__)


@dataclass
class Usage:
    """Requests and tokens so far."""

    requests: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def known(self) -> bool:
        """Whether tokens are counted; an endpoint that reports none has read some."""
        return not self.requests or self.prompt_tokens + self.completion_tokens > 0

    @property
    def tokens(self) -> str:
        """Tokens in words."""
        if not self.known:
            return "tokens unknown"
        return f"{self.prompt_tokens:,} + {self.completion_tokens:,} tokens"

    def told(self) -> dict[str, int | None]:
        """All counts; None for tokens that are unknown."""
        unknown = () if self.known else ("prompt_tokens", "completion_tokens")
        return vars(self) | dict.fromkeys(unknown)

    def cost(self, prompt_price: float, completion_price: float) -> float | None:
        """Cost, from prices per million tokens; None if these are unknown."""
        total = self.prompt_tokens * prompt_price + self.completion_tokens * completion_price
        return total / 1e6 if self.known else None


class EndpointPolicy:
    """Policy that plays frames with a model behind an OpenAI-compatible API.

    Its key is the environment variable OPENAI_API_KEY; local servers need none.

    Args:
        base_url: such as `http://127.0.0.1:8000/v1`.
        model: name of the model at the endpoint.
        settings: temperature and `max_turn_tokens`; the endpoint limits the length of a frame.
        sampling: `openai` sends temperature and top_p only. `full` does so after a server has
            refused one of the other fields by its name. Any other field that is refused is left
            out from then on, too.
        template_kwargs: arguments of the server's chat template, sent if there are any.
        concurrency: requests in flight.
        attempts: tries of a request; the pauses of the default sum to 48 to 64 s, or to what the
            endpoint requests, up to two minutes each.
        timeout_s: seconds of one try, to the end of its answer; a longer one isn't asked for again.

    Raises:
        PolicyError: `base_url` is not an address, or the key can't be one.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        settings: GenerationSettings,
        *,
        sampling: Literal["full", "openai"] = "full",
        template_kwargs: Mapping[str, object] | None = None,
        concurrency: int = 16,
        attempts: int = 12,
        timeout_s: float = 600.0,
    ) -> None:
        _require_address(base_url)
        self.base_url, self.model, self.settings = base_url, model, settings
        self.usage = Usage()
        self.trouble = ""
        """The endpoint's message about the last lost request; empty if none was lost."""
        self.cut = ""
        """Why the endpoint's last turn of a root ended it; empty if none did."""
        self._concurrency = concurrency
        self._places = Semaphore(concurrency)
        """Requests that may be in flight, over all policies of `beside`."""
        self._stop: Event | None = None
        self._body: dict[str, object] = dict(_UNCUT if sampling == "full" else {})
        """Fields of each request beside OpenAI's."""
        self._refused: set[str] = set()
        """Fields, and the role `system`, that the endpoint refuses; that of all of `beside`."""
        if template_kwargs:
            self._body["chat_template_kwargs"] = dict(template_kwargs)
        self._lost_in_a_row = 0
        # A key read from a file ends in a line break, which a header must not contain.
        self._key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise PolicyError("OPENAI_API_KEY holds a character that no key has. Copy it again.")
        self._client: Any = openai.OpenAI(
            base_url=base_url,
            api_key=self._key or "none",
            timeout=timeout_s,
            max_retries=attempts - 1,
            http_client=BoundedClient(timeout_s),
        )
        self._lock = Lock()
        self._frames: dict[FrameKey, list[dict[str, str]]] = {}

    def check(self) -> None:
        """Ask a test question, so that a wrong setting stops the run before any episode.

        Raises:
            PolicyError: the endpoint refuses the request or does not answer.
        """
        retries = min(_CHECKED - 1, self._client.max_retries)
        try:
            try:
                self._request(self._client.with_options(max_retries=retries), _HELLO, seed=0)
            except openai.InternalServerError as error:
                if error.status_code != _LOADING:
                    raise
                _LOG.warning("%s loads its model: rlm waits a minute", self.base_url)
                self._request(self._client, _HELLO, seed=0)
                self.usage.failures, self.trouble = 0, ""
        except openai.OpenAIError as error:
            passing = openai.RateLimitError | openai.InternalServerError
            if isinstance(error, openai.APIStatusError) and not isinstance(error, passing):
                raise PolicyError(
                    f"{self.base_url} refuses a test question to model {self.model!r} "
                    f"({self.trouble}). Use another model or proxy, or set "
                    "evaluate_model.template_kwargs: {} if it refuses chat_template_kwargs."
                ) from None
            waits = isinstance(error, openai.RateLimitError)
            fix = "Ask again later" if waits else "Start it or correct the address"
            raise PolicyError(f"{self.base_url} does not answer: {self.trouble}. {fix}.") from None

    def beside(self, stop: Event) -> EndpointPolicy:
        """A policy for other episodes at the same time, with its own frames, usage and failures.

        Connections and the limit of requests in flight are shared.

        Args:
            stop: when it is set, the policy asks nothing more, and `act` raises StoppedError.
        """
        other = copy(self)
        other.usage, other.trouble, other.cut, other._lost_in_a_row = Usage(), "", "", 0
        other._frames, other._stop = {}, stop
        return other

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        """Return a turn for each request; a lost request gets an `error` turn.

        Raises:
            PolicyError: the endpoint refuses the key, account, address or model, or is dead.
            StoppedError: the result is no longer wanted.
        """
        replies: list[Future[TurnReply]] = [Future() for _ in requests]
        left = deque(zip(replies, requests, strict=True))

        def work() -> None:
            while True:
                try:
                    reply, request = left.popleft()
                except IndexError:
                    return
                try:
                    reply.set_result(self._turn(request))
                except BaseException as error:
                    reply.set_exception(error)

        # Not a ThreadPoolExecutor: an interrupt would wait for requests in flight.
        for _ in range(min(self._concurrency, len(requests))):
            Thread(target=work, name="endpoint", daemon=True).start()
        try:
            return [self._awaited(reply) for reply in replies]
        finally:
            left.clear()

    def release(self, keys: Iterable[FrameKey]) -> None:
        """Discard the state of frames that ended."""
        for key in keys:
            self._frames.pop(key, None)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _awaited(self, reply: Future[TurnReply]) -> TurnReply:
        while self._stop is not None and not wait([reply], _NOTICE_S).done:
            self._require_wanted()
        return reply.result()

    def _turn(self, request: TurnRequest) -> TurnReply:
        talk = [] if request.first else self._frames[request.key]
        talk += [{"role": item.role, "content": item.content} for item in request.messages]
        self._frames[request.key] = talk
        self._require_alive()
        try:
            choice = self._request(self._client, talk, request.seed)
        except openai.OpenAIError as error:
            if not _is_its_own_fault(error):
                return TurnReply(text="", finish="error")
            text, cut = "", self._words(error)
        else:
            text, cut = choice.message.content or "", _why_cut(choice)
        if cut and not request.key[1]:
            self.cut = cut
        if text.strip():
            talk.append({"role": "assistant", "content": text})
        return TurnReply(text=in_grammar(text), finish="length" if cut else "stop")

    def _request(self, client: Any, talk: Sequence[Mapping[str, str]], seed: int) -> Any:
        """The first choice of the answer to a conversation.

        Raises:
            PolicyError: the endpoint refuses the key, account, address or model, or is dead.
            openai.OpenAIError: the request was refused, or failed at every try.
        """
        try:
            return self._ask(client, talk, seed)
        except openai.OpenAIError as error:
            with self._lock:
                self.usage.failures += 1
                self.trouble = self._words(error)
                self._lost_in_a_row += not _is_its_own_fault(error)
            if _is_permanent(error):
                raise PolicyError(
                    f"{self.base_url} refuses model {self.model!r} ({self._words(error)}). Check "
                    "the address (it usually ends in /v1), the model's name, OPENAI_API_KEY and "
                    "the account."
                ) from None
            self._require_alive()
            raise

    def _ask(self, client: Any, talk: Sequence[Mapping[str, str]], seed: int) -> Any:
        refused, system = set(self._refused), {"system"}
        most = "max_completion_tokens" if "max_tokens" in refused else "max_tokens"
        fields = {
            "temperature": self.settings.temperature,
            "top_p": 1.0,
            most: self.settings.max_turn_tokens,
            "seed": seed % 2**31,
            **self._body,
        }
        try:
            with self._places:
                self._require_wanted()
                answer = client.chat.completions.create(
                    model=self.model,
                    messages=_without_system(talk) if "system" in refused else talk,
                    extra_body={name: fields[name] for name in fields.keys() - refused},
                )
        except openai.APIStatusError as error:
            if not self._leave_out(error, (fields.keys() | system) - refused):
                raise
            return self._ask(client, talk, seed)
        except (ValueError, RecursionError) as error:  # the body is not JSON
            raise openai.OpenAIError(f"the answer is not a completion: {error}") from error
        with self._lock:
            self.usage.requests += 1
            usage = getattr(answer, "usage", None)
            self.usage.prompt_tokens += _count(usage, "prompt_tokens")
            self.usage.completion_tokens += _count(usage, "completion_tokens")
        choice = _first_choice(answer)
        with self._lock:
            self._lost_in_a_row = 0
        return choice

    def _leave_out(self, error: openai.APIStatusError, sent: Set[str]) -> bool:
        """Leave out from now on what the endpoint refuses; False if it names nothing of it."""
        said, status = self._words(error), error.status_code
        if _is_its_own_fault(error) or status not in (400, 422, 500):
            return False
        found = [one for one in _OPTIONAL if re.search(rf"\b{one}\b", said) or one == error.param]
        found.sort(key=lambda one: one != error.param)
        found = [one for one in found if one in sent and status != 500]
        if "system" in sent and _ROLES.search(said):  # llama.cpp: 500
            found.append("system")
        if not found:
            return False
        with self._lock:  # other requests in flight are refused, too
            if found[0] not in self._refused.union(_UNCUT):
                _LOG.warning("%s refuses %s: rlm asks without it", self.base_url, found[0])
            self._refused.update(_UNCUT if found[0] in _UNCUT else found[:1])
        return True

    def _require_wanted(self) -> None:
        if self._stop is not None and self._stop.is_set():
            raise StoppedError("the question is no longer wanted")

    def _require_alive(self) -> None:
        if self._lost_in_a_row >= _GONE_AFTER:
            raise PolicyError(
                f"{self.base_url} gives no more turns: {self._lost_in_a_row} requests in a row "
                f"were lost, the last: {self.trouble}. Repair the endpoint, then run again."
            )

    def _words(self, error: openai.OpenAIError) -> str:
        """The endpoint's message in one line, without the key."""
        said = str(error)
        if (cause := error.__cause__) and str(cause):
            said += f" ({cause})"
        elif (body := getattr(error, "body", None)) and " - " not in said:
            said += f" - {body}"  # a body in another form than OpenAI's
        if isinstance(error, openai.APIStatusError) and "retry-after" in error.response.headers:
            said = f"Retry-After: {error.response.headers['retry-after']}, {said}"
        if self._key:
            said = said.replace(self._key, "***")
        return " ".join(said.split())[:_SHOWN]


def _require_address(base_url: str) -> None:
    try:
        refuse_password(base_url)
    except ValueError as error:
        raise PolicyError(str(error)) from None
    try:
        parts = urlsplit(base_url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the port is not a number
        good = False
    if not good:
        raise PolicyError(
            f"{base_url!r} is not an endpoint's address. Use one such as http://127.0.0.1:8000/v1."
        )


def _without_system(talk: Sequence[Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
    """The conversation with the system's message in the user's first one."""
    if talk[0]["role"] != "system":
        return talk
    system, user, *rest = talk
    return [{"role": "user", "content": f"{system['content']}\n\n{user['content']}"}, *rest]


def _is_its_own_fault(error: Exception) -> bool:
    """Whether a conversation is refused for its length or content: no fault of the endpoint."""
    if not isinstance(error, openai.APIStatusError) or error.status_code not in (400, 413, 422):
        return False
    length = _LENGTH.search(str(error)) or error.status_code == 413
    return bool(length) or error.code == "content_filter"


def _why_cut(choice: Any) -> str:
    """Why a turn can't be followed by another; empty if it can."""
    message = choice.message
    if choice.finish_reason in _CUTS:
        return _CUTS[choice.finish_reason]
    said = without_thought(message.content or "").strip()
    if getattr(message, "tool_calls", None) and not re.search("```|~~~|FINAL", said):
        return "it called a tool, but was offered none"
    if said and not said.startswith("<think>"):
        return ""
    if refusal := getattr(message, "refusal", None):
        return f"it refused: {' '.join(str(refusal).split())[:_SHOWN]}"
    thoughts = (message.content, *(getattr(message, name, None) for name in _THOUGHTS))
    return "its turn holds a thought alone" if any(thoughts) else "its turn is empty"


def _is_permanent(error: BaseException) -> bool:
    """Whether neither a pause nor another prompt helps: key, account, address or model."""
    return isinstance(error, openai.APIStatusError) and (
        error.status_code in _PERMANENT or EMPTY in (error.code, error.type)
    )


def _count(usage: Any, name: str) -> int:
    """Number of tokens that an endpoint reports; 0 if it is none, since no client checks it."""
    value = getattr(usage, name, None)
    return min(max(value, 0), _MOST_TOKENS) if isinstance(value, int) else 0


def _first_choice(answer: Any) -> Any:
    """The first choice, whose text is a string or None.

    Raises:
        openai.OpenAIError: the answer is not a completion. The client checks no shapes, so a
            proxy's own messages arrive here.
    """
    choice = None
    try:
        choice = answer.choices[0]
        if isinstance(choice.message.content, str | None) and not getattr(choice, "error", None):
            return choice
    except (AttributeError, IndexError, TypeError):
        pass
    said = getattr(choice, "error", None) or getattr(answer, "error", None) or ""
    said = said.get("message") or said if isinstance(said, dict) else said
    raise openai.OpenAIError(f"the answer is not a completion{said and f': {said}'}")
