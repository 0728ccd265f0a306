"""Protocol of a policy: text in, text out, for many frames at once.

Implementations: a transformers model (`hf_policy.py`), scripts (`scripted.py`) and an
OpenAI-compatible endpoint (`endpoint.py`). The policy owns each frame's conversation and
key-value cache. The environment owns every word that the policy reads.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from env.models import Finish, FrameKind, Message, ProblemCard

FrameKey = tuple[int, int]
"""(episode number within the rollout, frame number within the tree)."""


@dataclass(frozen=True)
class TurnRequest:
    """A frame that needs a turn. `messages` has only the messages not sent before."""

    key: FrameKey
    messages: list[Message]
    depth: int
    kind: FrameKind
    first: bool
    """Whether this is the frame's first turn."""
    seed: int
    """Sampling seed of this turn: a function of run seed, episode, frame and turn."""
    problem: ProblemCard | None = None


@dataclass(frozen=True)
class TurnReply:
    """The policy's turn. The token fields are empty for policies without tokens."""

    text: str
    finish: Finish = "stop"
    prompt_ids: list[int] = field(default_factory=list)
    sampled_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Policy(Protocol):
    """Player of frames."""

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        """Return a turn for each request, in the order of the requests."""
        ...

    def release(self, keys: Iterable[FrameKey]) -> None:
        """Discard the state of frames that ended."""
        ...


@runtime_checkable
class StreamingPolicy(Policy, Protocol):
    """Policy that yields each turn as soon as it is complete."""

    def stream(self, requests: Sequence[TurnRequest]) -> Iterator[tuple[int, TurnReply]]:
        """Yield (index of the request, reply) in order of completion."""
        ...


def replies(policy: Policy, requests: Sequence[TurnRequest]) -> Iterable[tuple[int, TurnReply]]:
    """(index of the request, reply) of each request, as early as the policy has them."""
    if isinstance(policy, StreamingPolicy):
        return policy.stream(requests)
    return enumerate(policy.act(requests))
