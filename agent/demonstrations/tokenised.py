"""A policy that writes texts, with the token ids that a model would have read and sampled.

Its turns have the layout of the rollout and no log-probabilities: they are examples for supervised
training. Neighbours: `conversations.py` (ids of frames), `demonstrator.py` and `endpoint.py`
(policies that write texts), `agent/demonstrations/rows.py` (rows).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.policies.base import FrameKey, Policy, TurnReply, TurnRequest
from agent.policies.conversations import Conversations, TurnPrompt


class TokenisedPolicy:
    """Policy that adds token ids to the turns of another one.

    A turn beyond the limits of `Conversations` is cut as a sampled one would be, and finishes with
    `length`.

    Args:
        policy: writes the texts.
        conversations: token ids and limits of the frames, for the model that will be trained.
    """

    def __init__(self, policy: Policy, conversations: Conversations) -> None:
        self._policy = policy
        self._conversations = conversations

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        """Return a turn for each request."""
        prompts = [self._conversations.read(request) for request in requests]
        replies = self._policy.act(requests)
        return [
            self._with_ids(request, prompt, reply)
            for request, prompt, reply in zip(requests, prompts, replies, strict=True)
        ]

    def release(self, keys: Iterable[FrameKey]) -> None:
        """Discard the state of frames that ended."""
        ended = list(keys)
        self._policy.release(ended)
        for key in ended:
            self._conversations.release(key)

    def _with_ids(self, request: TurnRequest, prompt: TurnPrompt, reply: TurnReply) -> TurnReply:
        if reply.finish == "error":
            return reply
        ids = self._conversations.chat.completion(reply.text)
        if reply.finish == "length":  # the other policy's own limit cut it, so it has no end
            ids.pop()
        ids = ids[: prompt.limit]
        if not ids:
            return TurnReply(text="", finish="length")
        return self._conversations.reply(request, prompt, ids, logprobs=[])
