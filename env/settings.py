"""Settings of the environment: the section `env` of params.yaml.

The server reads them from the file that `RLM_SETTINGS` names. Without that variable, the defaults
below hold, so that a server starts anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import Field

from rewards.settings import RewardSettings
from rewards.settings import Settings as Settings  # for all sections of params.yaml

DOCUMENT_CHARS = 2_000_000
"""Most characters of a client's own papers, which a session keeps in memory."""
CHILD_CONTEXT_CHARS = 200_000
"""Most characters of a child's context: a long paper."""
PROMPT_CHARS = 8_000
"""Most characters of a sub-call's prompt and of a question; longer text is a context."""
TEMPLATES = 16
"""Contexts kept loaded, each of which holds a descriptor and a process."""
PromptStyle = Literal["full", "compact"]
RankKind = Literal["bm25", "minilm"]
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


class LimitSettings(Settings):
    """Limits of a tree. An exceeded limit is an observation, never an exception."""

    max_depth: int = Field(2, ge=0, le=8)
    """Deepest frame with a REPL; the root is 0."""
    max_frames: int = Field(256, ge=1, le=512)
    """Frames of one episode, root included."""
    max_children: int = Field(144, ge=1, le=256)
    """Frames opened by one call."""
    max_turns: int = Field(8, ge=1, le=64)
    """Turns of one frame."""
    cell_cpu_s: float = Field(2.0, gt=0, le=300)
    """CPU seconds of one cell."""
    cell_wall_s: float = Field(10.0, gt=0, le=600)
    """Own seconds of one cell, backstop."""
    memory_mb: int = Field(96, ge=32, le=4096)
    """MB above a bare interpreter."""
    observation_chars: int = Field(1200, ge=100, le=100_000)
    """Characters of one stdout."""
    tree_tokens: int | None = Field(None, ge=1)
    """Tokens that all frames of one episode may read and write together, each counted once; null:
    no budget.
    """

    @property
    def sub_calls(self) -> int:
        """Sub-calls of one episode. Refused ones count: each costs the server a round trip."""
        return 32 * self.max_frames


class SandboxSettings(Settings):
    """The REPL's boundary."""

    running_cells: int = Field(4, ge=1, le=256)
    """Cells that run at the same time, at most one for each core."""
    templates_mb: int = Field(64, ge=1, le=16_384)
    """MB of contexts kept loaded for the rollouts of a group."""


class EnvSettings(Settings):
    """The environment as a whole."""

    prompt_style: PromptStyle = "compact"
    """`full` explains the tools; `compact` is for models that were taught to use them."""
    search_window: int = Field(0, ge=0, le=10_000)
    """Characters around a search hit."""
    rank: RankKind = "bm25"
    """Order of `rank`: by shared words, or by meaning with the extra `search`."""
    passage_chars: int = Field(1000, ge=1)
    """Characters of a paragraph from which `rank` takes its sentences."""
    memory_mb: int | None = Field(None, ge=512)
    """MB of server and REPLs; null: the machine's or container's."""
    max_sessions: int = Field(256, ge=1, le=1024)
    """Most episodes at a time; files and memory may allow fewer."""
    idle_timeout_s: float = Field(600.0, gt=0)
    """An idle session ends as void."""
    splits: list[Split] | None = Field(None, min_length=1)
    """Splits that a client without RLM_ENV_OWNER_KEY may play, in rounded figures; null: all, in
    exact figures.
    """
    allowed_hosts: list[str] = []
    """Host names of this server, and of other pages that may play on it; if set, only these and
    loopback are served.
    """
    allow_documents: bool = False
    """Whether reset(question=..., papers=...) is allowed."""
    limits: LimitSettings = LimitSettings()
    sandbox: SandboxSettings = SandboxSettings()


CAPACITY = {
    *("memory_mb", "max_sessions", "idle_timeout_s", "sandbox"),
    *("splits", "allow_documents", "allowed_hosts"),
}
"""Settings of a server that decide no episode's course: how many, how fast, for whom."""


def rules(env: EnvSettings, rewards: RewardSettings) -> dict[str, Any]:
    """Settings that decide the course and the reward of an episode, by dotted name.

    Servers with the same rules are comparable. Only settings of a server's capacity are left out.
    """
    decides = env.model_dump(exclude=CAPACITY)
    return flatten(decides, "env.") | flatten(rewards.model_dump(), "rewards.")


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
