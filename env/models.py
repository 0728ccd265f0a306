"""The wire: all messages between a client and the environment.

Names here are fixed: both sides and every stored trajectory use them. No message contains gold
evidence. Neighbours: `env/client.py` sends and receives these, `env/server/` fills them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from env.light_openenv import types

FrameKind = Literal["rlm", "llm"]
"""`rlm`: a frame with a REPL. `llm`: one completion without a REPL (`llm_query`)."""

FrameStatus = Literal["ready", "waiting", "ended"]
"""`ready`: needs a turn of the policy. `waiting`: its cell is suspended in a sub-call."""

StopReason = Literal["final", "max_turns", "truncated", "timeout", "budget", "overspent", "error"]
"""Why a frame ended. Only `final` comes with an answer. `overspent`: the tree took more tokens than
`env.limits.tree_tokens`."""

Finish = Literal["stop", "length", "error"]
"""How the policy's completion ended. `error`: the policy failed, and the episode is void."""

WSErrorCode = types.WSErrorCode

WIRE_VERSION = 4
"""Increased by each change that an older client or server would misread; `/metadata` names it."""

BUSY = "the machine was too busy to run a cell"
"""The one void that the policy's code can bring about: a clock ended its cell."""

MAX_TURNS = 512
"""Turns of one action; the largest `env.limits.max_frames`."""

MESSAGE_BYTES = 2_000_000
"""Bytes of one message of a client; more where clients may send their own papers."""

JSONValue = Annotated[Any, "None, bool, int, float, str, or lists and string-keyed dicts of these"]


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Message(_Wire):
    """One chat message for the policy."""

    role: Literal["system", "user"]
    content: str


class FrameTurn(_Wire):
    """The policy's raw text for one ready frame."""

    frame: int = Field(ge=0)
    text: str
    finish: Finish = "stop"
    tokens: int = Field(0, ge=0)
    """Tokens that the frame read and wrote since its last turn, by the client's own tokenizer. The
    server counts more if its own count is larger."""


class FrameView(_Wire):
    """One frame as the policy may see it: its place in the tree and its new messages."""

    frame: int
    parent: int | None
    depth: int
    kind: FrameKind
    messages: list[Message] = []
    """Only messages not sent before; the client keeps the conversation."""
    status: FrameStatus
    stop_reason: StopReason | None = None


class Counters(_Wire):
    """Counts over the whole tree, so far."""

    turns: int = 0
    sub_calls: int = 0
    frames: int = 0
    max_depth: int = 0
    errors: int = 0
    """Turns whose block raised, or that did not have exactly one block."""
    timeouts: int = 0
    """Cells stopped by a CPU or wall limit."""
    format_errors: int = 0
    """Turns without exactly one block."""
    tokens: int = 0
    """Tokens that all frames read and wrote, each once, as the server counts them."""
    env_s: float = 0.0
    """Seconds that the environment worked on this episode, without the policy's time."""


class AnswerMetrics(_Wire):
    """Agreement of the final answer with gold, beside the reward; numbers are in [0, 1].

    The last two are None in records of episodes that are older than these fields.
    """

    precision: float
    """Share of characters, like `recall` and `f1`."""
    recall: float
    f1: float
    exact_match: bool | None = None
    """Whether the answer quotes all of gold and nothing else."""
    paper_f1: float | None = None
    """F1 of the papers that contain the answer's spans."""


class ProblemCard(_Wire):
    """Facts about the current problem that a client may know. `tier` comes only with `done`.

    `difficulty` is empty where it would reveal the number of papers with gold.
    """

    problem_id: str
    collection_id: str
    difficulty: str
    split: str
    papers: int
    tier: str | None = None


class RLMAction(types.Action):
    """Turns for any number of ready frames; `text` is a shorthand for the first ready one."""

    text: str = ""
    turns: list[FrameTurn] = Field([], max_length=MAX_TURNS)


class RLMObservation(types.Observation):
    """Frames that need the policy, and frames that ended since the last observation."""

    frames: list[FrameView] = []
    components: dict[str, float] = {}
    metrics: AnswerMetrics | None = None
    counters: Counters = Counters()
    answer: JSONValue = None
    """When done: value that the root passed to FINAL, never gold."""
    void: str | None = None
    """Infrastructure failure that makes the episode void, else None."""
    refused: str | None = None
    """Reason why the last action was refused, else None; the state is unchanged."""
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


class RLMState(types.State):
    """The tree, without gold and without texts."""

    problem: ProblemCard | None = None
    frames: list[FrameState] = []
    counters: Counters = Counters()
    done: bool = False
    void: str | None = None
