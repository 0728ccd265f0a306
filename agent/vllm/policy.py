"""Policy of a model behind a server of vLLM: token ids in, sampled ids and log-probabilities out.

It keeps exactly the ids that `hf_policy.py` would keep, so its episodes can be trained on. Each
turn is one request of `/v1/completions` with the whole conversation; the server has its prefix in
the cache. A turn that the server loses makes its episode void, and a server that stays away stops
the training. Neighbours: `conversations.py` (ids), `server.py` (requests).

Source: vLLM 0.31.0, `entrypoints/openai/completion/protocol.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any

from agent.errors import PolicyError
from agent.policies.base import FrameKey, TurnReply, TurnRequest
from agent.policies.conversations import Conversations, TurnPrompt
from agent.settings import GenerationSettings
from agent.vllm.server import CONCURRENCY, EngineLostError, VllmServer

PURE = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    # The stop ids are ours alone.
    "ignore_eos": True,
    "watermarking": False,
    "logprobs": 0,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
}
"""Fields that make the sampled distribution that of the model at the temperature.

All are sent, because a server takes omitted ones from the model's generation_config.json.
"""


class VllmPolicy:
    """Policy that plays frames through a server of vLLM.

    Args:
        conversations: ids of the frames.
        server: the server, with the adapter to play in force.
        settings: sampling.
    """

    def __init__(
        self, conversations: Conversations, server: VllmServer, settings: GenerationSettings
    ) -> None:
        self.settings = settings
        self._conversations, self._server = conversations, server

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        """Return a turn for each request; see `stream`."""
        replies = dict(self.stream(requests))
        return [replies[place] for place in range(len(requests))]

    def stream(self, requests: Sequence[TurnRequest]) -> Iterator[tuple[int, TurnReply]]:
        """Yield (index of the request, reply) as soon as each turn is complete.

        A frame without room gets an empty `length` turn, a turn that is lost is an `error` turn.

        Raises:
            PolicyError: the server refuses a request, plays another prompt, gives no usable
                log-probabilities, or no longer answers.
        """
        asked: dict[Future[dict[str, Any]], tuple[int, TurnPrompt, list[int]]] = {}
        lost: list[int] = []
        pool = ThreadPoolExecutor(max_workers=CONCURRENCY)
        try:
            for place, request in enumerate(requests):
                prompt = self._conversations.read(request)
                if not prompt.limit:
                    yield place, TurnReply(text="", finish="length")
                    continue
                ids = list(self._conversations.ids(request.key))
                body = self._body(request, ids, prompt.limit)
                asked[pool.submit(self._server.complete, body)] = place, prompt, ids
            for future in as_completed(asked):
                place, prompt, ids = asked[future]
                request = requests[place]
                try:
                    sampled, logprobs = checked_turn(future.result(), ids, prompt.limit)
                except EngineLostError:
                    lost.append(place)
                else:
                    yield place, self._conversations.reply(request, prompt, sampled, logprobs)
        finally:
            # An interrupted run does not wait for the turns in flight.
            pool.shutdown(wait=False, cancel_futures=True)
        if lost:
            self._server.restore()  # it may have been started again
        for place in lost:
            yield place, TurnReply(text="", finish="error")

    def release(self, keys: Iterable[FrameKey]) -> None:
        """Discard the state of frames that ended."""
        for key in keys:
            self._conversations.release(key)

    def _body(self, request: TurnRequest, ids: list[int], limit: int) -> dict[str, Any]:
        return {
            "prompt": ids,
            "max_tokens": limit,
            "temperature": self.settings.temperature,
            "seed": request.seed,
            "stop_token_ids": sorted(self._conversations.stop_ids),
            **PURE,
        }


def checked_turn(
    choice: dict[str, Any], prompt: Sequence[int], limit: int
) -> tuple[list[int], list[float]]:
    """Sampled ids and their log-probabilities.

    Args:
        choice: the completion's only choice.
        prompt: ids that were sent.
        limit: most tokens of the turn.

    Raises:
        EngineLostError: the server gave up the request.
        PolicyError: the server read other ids, or log-probabilities are missing or not finite.
    """
    if choice.get("finish_reason") not in ("stop", "length"):
        raise EngineLostError(f"a turn ended with {choice.get('finish_reason')!r}")
    if choice.get("prompt_token_ids") != list(prompt):
        raise PolicyError(
            "the engine read other token ids than it was sent. Start vLLM 0.31.0 without an option "
            "that changes prompts."
        )
    sampled = choice.get("token_ids")
    scores = choice.get("logprobs")
    logprobs = scores.get("token_logprobs") if isinstance(scores, dict) else None
    sampled, logprobs = (x if isinstance(x, list) else [] for x in (sampled, logprobs))
    if not 0 < len(sampled) == len(logprobs) <= limit:
        raise PolicyError(
            f"the engine gave {len(sampled)} token ids and {len(logprobs)} log-probabilities for a "
            f"turn of at most {limit} tokens. Use vLLM 0.31.0."
        )
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in logprobs):
        raise PolicyError(
            "the engine gave a log-probability that is not a number. Its weights or the adapter's "
            "are damaged: resume from an earlier checkpoint, or lower train.learning_rate."
        )
    return list(sampled), [float(value) for value in logprobs]
