"""Record of an episode: a tree of frames with every token that the policy read and wrote.

The rollout fills it, batching makes rows of it, evaluation and reports read it. Pure data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from env.models import AnswerMetrics, Counters, Finish, FrameKind, JSONValue, StopReason
from env.prompts import cut

SUCCESS_AT = 0.5
"""Least primary objective of a successful episode: half of the evidence, without much else."""
ANSWER_CHARS = 10_000
"""Characters, as JSON, of an answer that a record keeps; a longer one becomes its first part."""


@dataclass
class TurnRecord:
    """A turn of a frame: the messages since its last turn, and its reply."""

    observation: str
    """The new messages as text, for readers; the loss uses the tokens below."""
    text: str
    finish: Finish
    prompt_ids: list[int] = field(default_factory=list)
    """New tokens read before this turn: the first prompt or the next user message."""
    sampled_ids: list[int] = field(default_factory=list)
    """Sampled tokens, with the end-of-turn token if it was sampled."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of each token at sampling time, with the temperature applied."""


@dataclass
class FrameRecord:
    """An agent of the tree."""

    frame: int
    parent: int | None
    depth: int
    kind: FrameKind
    turns: list[TurnRecord] = field(default_factory=list)
    stop_reason: StopReason | None = None


@dataclass
class Trajectory:
    """An episode, from reset to done."""

    problem_id: str
    difficulty: str
    collection_id: str = ""
    tier: str | None = None
    frames: dict[int, FrameRecord] = field(default_factory=dict)
    reward: float | None = None
    """Reward in [0, 1]; None when void or without gold."""
    components: dict[str, float] = field(default_factory=dict)
    metrics: AnswerMetrics | None = None
    counters: Counters = field(default_factory=Counters)
    answer: JSONValue = None
    """Argument of the root's FINAL, as `kept_answer` returns it unless `play` keeps it whole."""
    void: str | None = None
    seconds: float = 0.0

    @property
    def root(self) -> FrameRecord:
        """Frame 0."""
        return self.frames[0]

    @property
    def lost(self) -> bool:
        """Whether a turn of the policy was followed by a lost connection or a refusal."""
        cause = (self.void or "").partition(":")[0]
        played = any(frame.turns for frame in self.frames.values())
        return played and cause in ("connection", "refused")

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens that the policy sampled in all frames."""
        return sum(len(t.sampled_ids) for frame in self.frames.values() for t in frame.turns)

    def children(self, frame: int) -> list[FrameRecord]:
        """All frames that `frame` opened, over all its turns, in order."""
        return [record for record in self.frames.values() if record.parent == frame]

    @property
    def answered(self) -> bool:
        """Whether the root gave a final answer."""
        return self.void is None and bool(self.frames) and self.root.stop_reason == "final"

    @property
    def succeeded(self) -> bool:
        """Whether the root answered with a primary objective of at least `SUCCESS_AT`."""
        return self.answered and self.components.get("primary_objective", 0.0) >= SUCCESS_AT


def kept_answer(answer: JSONValue) -> JSONValue:
    """The answer, or the first `ANSWER_CHARS` characters of its JSON if it is longer.

    The environment scores the whole answer. Records and reports only show it, and a step
    has hundreds.
    """
    text = json.dumps(answer, ensure_ascii=False)
    return answer if len(text) <= ANSWER_CHARS else cut(text, ANSWER_CHARS)
