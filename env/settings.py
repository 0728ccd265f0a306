"""Settings of the environment: the section `env` of params.yaml.

The server reads them from the file that `RLM_SETTINGS` names (an address, no setting); without
it the defaults below hold, so it starts anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rewards.settings import RewardSettings

PromptStyle = Literal["full", "compact"]


class Settings(BaseModel):
    """Base of all sections: frozen, and an unknown key is an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )


class LimitSettings(Settings):
    """Tree-wide limits. One that bites is said in an observation, never an exception."""

    max_depth: int = Field(2, ge=0, le=8, description="deepest frame with a REPL; the root is 0")
    max_frames: int = Field(32, ge=1, le=512, description="frames of one episode, root included")
    max_children: int = Field(8, ge=1, le=64, description="frames opened by one call")
    max_turns: int = Field(4, ge=1, le=64, description="turns of one frame")
    cell_cpu_s: float = Field(2.0, gt=0, le=300, description="CPU seconds of one cell")
    cell_wall_s: float = Field(10.0, gt=0, le=600, description="wall seconds of one cell, backstop")
    memory_mb: int = Field(96, ge=32, le=4096, description="MB above a bare interpreter")
    observation_chars: int = Field(1200, ge=100, le=100_000, description="characters of one stdout")
    child_context_chars: int = Field(200_000, ge=100, description="characters of a child's context")
    prompt_chars: int = Field(8_000, ge=20, description="characters of a sub-call's prompt")
    episode_s: float = Field(60.0, gt=0, description="CPU seconds of all cells of one episode")


class SandboxSettings(Settings):
    """The REPL's boundary."""

    backend: Literal["seccomp", "monty"] = Field(
        "seccomp", description="forked CPython under seccomp, or the interpreter pydantic-monty"
    )
    running_cells: int = Field(4, ge=1, le=256, description="cells that run at the same time")
    templates: int = Field(
        16, ge=0, le=256, description="contexts held ready for the rollouts of a group"
    )
    templates_mb: int = Field(64, ge=1, le=16_384, description="MB of these contexts together")
    preload: list[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]] = Field(
        [], description="modules that cells may import beside the standard library's"
    )


class EnvSettings(Settings):
    """The environment as a whole."""

    prompt_style: PromptStyle = Field(
        "compact", description="`full` for real models, `compact` for nano"
    )
    search_window: int = Field(0, ge=0, le=10_000, description="characters around a search hit")
    quiet_search: bool = Field(
        True, description="false: search also prints what it finds, as the published scaffold does"
    )
    max_sessions: int = Field(256, ge=1, le=1024, description="episodes at the same time")
    idle_timeout_s: float = Field(600.0, gt=0, description="an idle session ends as void")
    allow_documents: bool = Field(False, description="reset(question=..., papers=...) is allowed")
    document_chars: int = Field(2_000_000, ge=1, description="characters of a client's own papers")
    deterministic: bool = Field(
        False,
        description="no clock decides what an episode is, unless it makes it void (ADR 10): of a "
        "cell stopped by its CPU limit nothing is left, and one that ends within half of it of "
        "the limit makes its episode void",
    )
    limits: LimitSettings = LimitSettings()
    sandbox: SandboxSettings = SandboxSettings()

    @model_validator(mode="after")
    def _clocks(self) -> Self:
        if self.deterministic and self.sandbox.backend == "monty":
            raise ValueError(
                "deterministic needs sandbox.backend: seccomp; monty stops cells by wall time"
            )
        return self


_CAPACITY = {
    "env.max_sessions",
    "env.idle_timeout_s",
    "env.allow_documents",
    "env.document_chars",
    "env.sandbox.running_cells",
    "env.sandbox.templates",
    "env.sandbox.templates_mb",
}


def rules(env: EnvSettings, rewards: RewardSettings) -> dict[str, Any]:
    """What decides how an episode goes and what it earns: servers that agree here are comparable.

    Returns:
        Values by dotted name; left out is only what says how much a server can carry.
    """
    told = flatten(env.model_dump(), "env.") | flatten(rewards.model_dump(), "rewards.")
    return {key: value for key, value in told.items() if key not in _CAPACITY}


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
