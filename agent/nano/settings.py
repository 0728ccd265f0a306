"""Settings of the nano model and its warm start: `warmstart.nano` of params.yaml."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from env.settings import Settings

PlanKind = Literal["readers", "children", "pages", "names", "recite", "unread"]
"""Reader of the sentences: readers, children with readers, the root in pages or by names alone.

With `recite` the root writes names of the field from memory, with `unread` it guesses.
"""

Size = Literal["1", "2", "4", "8", "12", "24"]
"""Sentences of a reader's call, or of a page; a string, as a key of YAML or JSON."""

Most = Literal["8", "16", "all"]
"""Most sentences that are looked at."""

Kept = Literal["field", "all", "first"]
"""Sentences of an answer: those of the field, all, or the first."""


class NanoModelSettings(Settings):
    """Sizes of the Llama model."""

    hidden: int = Field(128, ge=64, le=2048)
    layers: int = Field(3, ge=2, le=24)
    heads: int = Field(4, ge=2, le=32)
    mlp: int = Field(256, ge=32)
    rope_theta: float = Field(1e6, gt=0, description="large: most of a head ignores distance")
    vocab: int = Field(720, ge=400, le=8192, description="most entries of the tokenizer")
    context: int = Field(512, ge=64, description="most positions")

    @model_validator(mode="after")
    def _heads_fit(self) -> NanoModelSettings:
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise ValueError(f"hidden {self.hidden} must be an even multiple of heads {self.heads}")
        return self


def check_shares(settings: Settings, fields: Sequence[str]) -> None:
    """Raise ValueError unless the shares of each field are at least 0 and sum to 1."""
    for name in fields:
        shares = getattr(settings, name)
        if abs(sum(shares.values()) - 1) > 1e-6 or min(shares.values()) < 0:
            raise ValueError(f"{name}: the shares {shares} must be at least 0 and sum to 1")


class ReadingMixture(Settings):
    """Probabilities of the decisions in a demonstration. Decisions are independent.

    All good choices together are rare, so the base model is mediocre. Each good choice alone is
    frequent, so that sampling finds it.
    """

    plan: dict[PlanKind, float] = Field(
        {
            "readers": 0.5,
            "children": 0.15,
            "pages": 0.15,
            "names": 0.05,
            "recite": 0.03,
            "unread": 0.12,
        },
        description="shares of the ways to read",
    )
    size: dict[Size, float] = Field(
        {"1": 0.15, "2": 0.15, "4": 0.35, "8": 0.25, "24": 0.1},
        description="shares of the sentences of a call",
    )
    page: dict[Size, float] = Field(
        {"8": 0.2, "12": 0.5, "24": 0.3}, description="shares of the sentences of a page"
    )
    most: dict[Most, float] = Field(
        {"8": 0.64, "16": 0.04, "all": 0.32}, description="shares of the sentences looked at"
    )
    keep: dict[Kept, float] = Field(
        {"field": 0.8, "all": 0.12, "first": 0.08}, description="shares of the sentences kept"
    )
    forgetful: float = Field(
        0.3, ge=0, le=1, description="pages whose turns do not show the earlier ones"
    )
    budget: float = Field(0.2, ge=0, le=1, description="questions that name a budget of tokens")

    @model_validator(mode="after")
    def _shares(self) -> ReadingMixture:
        check_shares(self, ("plan", "size", "page", "most", "keep"))
        return self


class NanoSettings(Settings):
    """Warm start of the nano base before GRPO."""

    model: NanoModelSettings = NanoModelSettings()
    reading: ReadingMixture = ReadingMixture()
    steps: int = Field(800, ge=1, description="most optimizer steps")
    min_steps: int = Field(600, ge=1, description="steps before the probe can end the warm start")
    warmup_steps: int = Field(40, ge=0)
    drill_steps: int = Field(60, ge=0, description="steps of drills at the start")
    drill_every: int = Field(6, ge=1, description="later, one drill batch in this many")
    batch_tokens: int = Field(2048, ge=128)
    learning_rate: float = Field(1.5e-3, gt=0)
    embedding_rate: float = Field(
        0.2, gt=0, description="share of the rate for embeddings, whose wiring is easily undone"
    )
    observation_weight: float = Field(0.1, ge=0)
    name_weight: float = Field(3.0, ge=0, description="loss weight of names and fields")
    slips: float = Field(0.15, ge=0, le=1, description="conversations with a broken turn")
    noise: float = Field(0.01, ge=0, le=0.5, description="written tokens replaced at random")
    probe_greedy: float = Field(0.97, ge=0, le=1, description="right trees and readers, greedy")
    probe_sampled: float = Field(0.93, ge=0, le=1, description="the same at T = 1")
    probe_every: int = Field(100, ge=1, description="steps between probes")
    probe_pairs: int = Field(200, ge=20, description="trees and readers of a probe")
    seed: int = Field(0, ge=0)
