"""What a policy is: text in, text out, for many frames at once.

One protocol, several policies: a transformers model (`agent/models.py`), scripted ones
(`agent/scripted.py`, `agent/exploits.py`), an OpenAI-compatible endpoint (`agent/endpoint.py`).
The policy owns the conversation of each frame (and its key-value cache); the environment owns
every word the policy reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from env.models import Finish, FrameKind, Message, ProblemCard

FrameKey = tuple[int, int]
"""(episode number within the rollout, frame number within the tree)."""


@dataclass(frozen=True)
class TurnRequest:
    """A frame that needs a turn. `messages` are only those not sent before."""

    key: FrameKey
    messages: list[Message]
    depth: int
    kind: FrameKind
    first: bool
    """No turn of this frame came before."""
    seed: int
    """Seed of this turn's sampling: a function of run seed, episode, frame and turn."""
    problem: ProblemCard | None = None


@dataclass(frozen=True)
class TurnReply:
    """The policy's turn. Token fields are empty for policies that have no tokens."""

    text: str
    finish: Finish = "stop"
    prompt_ids: list[int] = field(default_factory=list)
    sampled_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Policy(Protocol):
    """Anything that can play frames."""

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        """One turn for each request, in the order given."""
        ...

    def release(self, keys: Iterable[FrameKey]) -> None:
        """Forget frames that ended."""
        ...


@runtime_checkable
class StreamingPolicy(Policy, Protocol):
    """A policy that hands out each turn as soon as it is written."""

    def stream(self, requests: Sequence[TurnRequest]) -> Iterator[tuple[int, TurnReply]]:
        """(place among the requests, reply) of each request, in the order they are written."""
        ...


def replies(policy: Policy, requests: Sequence[TurnRequest]) -> Iterable[tuple[int, TurnReply]]:
    """(place among the requests, reply) of each request, as early as the policy can tell."""
    if isinstance(policy, StreamingPolicy):
        return policy.stream(requests)
    return enumerate(policy.act(requests))
