"""The wire: what travels between a client and the environment, and nothing else.

Names here are fixed; both sides and every stored trajectory use them. No message holds gold
evidence. Neighbours: `env/client.py` sends and receives these, `env/server/` fills them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel, ConfigDict, Field

FrameKind = Literal["rlm", "llm"]
"""`rlm`: a frame with a REPL. `llm`: one completion without a REPL (`llm_query`)."""

FrameStatus = Literal["ready", "waiting", "ended"]
"""`ready`: needs a turn of the policy. `waiting`: its cell is suspended in a sub-call."""

StopReason = Literal["final", "max_turns", "truncated", "timeout", "budget", "error"]
"""Why a frame ended. Only `final` gave an answer."""

Finish = Literal["stop", "length", "error"]
"""How the policy's completion ended; `error` means that the policy failed: a void episode."""

JSONValue = Annotated[Any, "None, bool, int, float, str, or lists and string-keyed dicts of these"]


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Message(_Wire):
    """One chat message that the policy is to see."""

    role: Literal["system", "user"]
    content: str


class FrameTurn(_Wire):
    """The policy's raw text for one ready frame."""

    frame: int = Field(ge=0)
    text: str
    finish: Finish = "stop"


class FrameView(_Wire):
    """One frame, as the policy may see it: its place in the tree and its new messages."""

    frame: int
    parent: int | None
    depth: int
    kind: FrameKind
    messages: list[Message] = []
    """Only messages not sent before; the client keeps the conversation."""
    status: FrameStatus
    stop_reason: StopReason | None = None


class Counters(_Wire):
    """What the server counted over the whole tree, so far."""

    turns: int = 0
    sub_calls: int = 0
    frames: int = 0
    max_depth: int = 0
    errors: int = 0
    """Turns whose block was missing, doubled, or raised."""
    timeouts: int = 0
    """Cells stopped by a CPU or wall budget."""
    format_errors: int = 0
    """Turns without exactly one block."""
    env_s: float = 0.0
    """Seconds the environment worked on this episode; the policy's time is not in it."""


class Evidence(_Wire):
    """How the final answer agrees with gold, beside the reward; the numbers are in [0, 1].

    The last three are None in the record of an episode that was played before they were counted.
    """

    precision: float
    """Of characters, as recall and f1 are."""
    recall: float
    f1: float
    exact_match: bool | None = None
    """All of gold was quoted, and nothing else."""
    paper_f1: float | None = None
    """Of the papers that the answer's spans lie in."""
    canary: bool | None = None
    """It quotes a paper that tells its reader what to answer; None where no paper is one."""


class ProblemCard(_Wire):
    """What a client may know of the problem being played. `tier` comes only with `done`."""

    problem_id: str
    group_id: str
    difficulty: str
    split: str
    papers: int
    tier: str | None = None


class RLMAction(Action):
    """Turns for any number of ready frames; `text` is the shorthand for the first ready one."""

    text: str = ""
    turns: list[FrameTurn] = []
    seq: int | None = None
    """Step number chosen by the client: a repeated one is answered again, not played twice."""


class RLMObservation(Observation):
    """Frames that now need the policy, and those that ended since the last observation."""

    frames: list[FrameView] = []
    components: dict[str, float] = {}
    evidence: Evidence | None = None
    counters: Counters = Counters()
    frame_scores: dict[int, float] = {}
    """When done: each child's own span F1 on the papers it was given."""
    answer: JSONValue = None
    """When done: what the root gave to FINAL; its own words, never gold."""
    void: str | None = None
    """Why the episode counts for nothing (an infrastructure failure), else None."""
    refused: str | None = None
    """Why the last action was refused; the state did not change."""
    problem: ProblemCard | None = None


class FrameState(_Wire):
    """One node of the tree in `state`."""

    frame: int
    parent: int | None
    depth: int
    kind: FrameKind
    turns: int
    status: FrameStatus
    stop_reason: StopReason | None = None


class RLMState(State):
    """The tree, without gold and without texts."""

    problem: ProblemCard | None = None
    frames: list[FrameState] = []
    counters: Counters = Counters()
    done: bool = False
    void: str | None = None
