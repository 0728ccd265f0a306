"""The record of an episode: a tree of frames with every token the policy read and wrote.

Rollout fills it, batching turns it into rows for the loss, evaluation and the report read it.
Pure data: no torch, no client, no files.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from env.models import Counters, Evidence, Finish, FrameKind, JSONValue, StopReason


@dataclass
class TurnRecord:
    """One turn of a frame: what it read since its last turn, and what it wrote."""

    observation: str
    """The new messages as text, for reading; the tokens below are what counts."""
    text: str
    finish: Finish
    prompt_ids: list[int] = field(default_factory=list)
    """New tokens the policy read before this turn: first prompt, or the fixed suffix."""
    sampled_ids: list[int] = field(default_factory=list)
    """Tokens sampled, end-of-turn token included when it was sampled."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of each sampled token at sampling time, temperature applied."""
    at_s: float = 0.0
    """Seconds from the episode's start to the request of this turn."""
    seconds: float = 0.0


@dataclass
class FrameRecord:
    """One agent of the tree."""

    frame: int
    parent: int | None
    depth: int
    kind: FrameKind
    turns: list[TurnRecord] = field(default_factory=list)
    stop_reason: StopReason | None = None
    opened_in: int | None = None
    """Which turn of its parent opened it, from 0; None for the root."""
    ended_s: float | None = None
    """Seconds from the episode's start to the news of its end."""


@dataclass
class Trajectory:
    """One episode, from reset to done."""

    problem_id: str
    difficulty: str
    group_id: str = ""
    tier: str | None = None
    frames: dict[int, FrameRecord] = field(default_factory=dict)
    reward: float | None = None
    """None when void (or when the problem has no gold)."""
    components: dict[str, float] = field(default_factory=dict)
    evidence: Evidence | None = None
    counters: Counters = field(default_factory=Counters)
    frame_scores: dict[int, float] = field(default_factory=dict)
    answer: JSONValue = None
    """What the root gave to FINAL."""
    void: str | None = None
    seconds: float = 0.0

    @property
    def root(self) -> FrameRecord:
        """Frame 0."""
        return self.frames[0]

    def children(self, frame: int) -> list[FrameRecord]:
        """All frames opened by `frame`, over all its turns, in order."""
        return [record for record in self.frames.values() if record.parent == frame]

    @property
    def answered(self) -> bool:
        """The root gave a final answer."""
        return self.void is None and bool(self.frames) and self.root.stop_reason == "final"
