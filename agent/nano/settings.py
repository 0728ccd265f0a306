"""Settings of the nano model and its warm start: `warmstart.nano` of params.yaml."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from env.settings import Settings

Count = Literal["1", "2", "4", "8"]
"""How many papers a root hands on, at most; text, as keys of YAML and JSON are."""

Told = Literal["both", "first", "second"]
"""Which of the question's names a child is told."""

Keep = Literal["other", "none", "one", "whole"]
"""What a child keeps: hits with the other name, all hits, the first, or its whole part."""


class ModelSettings(Settings):
    """Llama-style decoder."""

    hidden: int = Field(128, ge=64, le=2048)
    layers: int = Field(3, ge=2, le=24)
    heads: int = Field(4, ge=2, le=32)
    mlp: int = Field(256, ge=32)
    rope_theta: float = Field(
        1e6, gt=0, description="high, so that most of a head compares without regard to distance"
    )
    vocab: int = Field(600, ge=400, le=8192, description="most entries of the tokenizer")
    context: int = Field(512, ge=64, description="most positions")

    @model_validator(mode="after")
    def _heads_fit(self) -> ModelSettings:
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise ValueError(f"hidden {self.hidden} must be an even multiple of heads {self.heads}")
        return self


class MixtureSettings(Settings):
    """How often a demonstration decides what. Each decision is drawn by itself.

    A good choice is seldom made together with the other good ones, so that the base model is
    mediocre, and never rare by itself, so that sampling meets it.
    """

    keyword_first: float = Field(0.85, ge=0, le=1, description="search the question's first name")
    filter_papers: float = Field(0.4, ge=0, le=1, description="keep papers with the other name")
    papers: dict[Count, float] = Field(
        {"1": 0.3, "2": 0.35, "4": 0.1, "8": 0.25},
        description="shares of how many papers are handed on, at most",
    )
    prompt: dict[Told, float] = Field(
        {"both": 0.4, "first": 0.45, "second": 0.15},
        description="shares of the names in a child's prompt",
    )
    merge_all: float = Field(0.45, ge=0, le=1, description="answer with all children's sentences")
    final_var: float = Field(0.3, ge=0, le=1, description="end by FINAL_VAR instead of FINAL")
    child: dict[Keep, float] = Field(
        {"other": 0.35, "none": 0.4, "one": 0.15, "whole": 0.1},
        description="shares of what a child that knows both names keeps of its part",
    )

    @model_validator(mode="after")
    def _shares(self) -> MixtureSettings:
        for name in ("papers", "prompt", "child"):
            shares = getattr(self, name)
            if abs(sum(shares.values()) - 1) > 1e-6 or min(shares.values()) < 0:
                raise ValueError(f"{name}: the shares {shares} must sum to 1")
        return self


class NanoSettings(Settings):
    """How the nano base is taught before GRPO."""

    model: ModelSettings = ModelSettings()
    mixture: MixtureSettings = MixtureSettings()
    trees: int = Field(6000, ge=100, description="demonstration trees")
    steps: int = Field(1000, ge=1, description="most optimizer steps")
    min_steps: int = Field(600, ge=1, description="steps before the probe may end the teaching")
    warmup_steps: int = Field(40, ge=0)
    drill_steps: int = Field(90, ge=0, description="steps of pure copying drills at the start")
    drill_every: int = Field(12, ge=1, description="then one drill batch in so many")
    batch_tokens: int = Field(2048, ge=128)
    learning_rate: float = Field(1.5e-3, gt=0)
    embedding_rate: float = Field(
        0.2, gt=0, description="share of it for embeddings, whose wired part is easily undone"
    )
    observation_weight: float = Field(0.1, ge=0)
    name_weight: float = Field(3.0, ge=0, description="loss weight of copied names")
    slips: float = Field(
        0.15, ge=0, le=1, description="share of conversations with a broken turn that is mended"
    )
    reworded: float = Field(
        0.0, ge=0, le=1, description="share of roots whose question is asked in made-up words"
    )
    noise: float = Field(
        0.01, ge=0, le=0.5, description="share of written tokens that are wrong, and no target"
    )
    probe_greedy: float = Field(0.97, ge=0, le=1, description="binding probe, greedy")
    probe_sampled: float = Field(0.95, ge=0, le=1, description="binding probe at T = 1")
    probe_every: int = Field(100, ge=1, description="steps between probes")
    probe_pairs: int = Field(200, ge=20, description="pairs of unseen names in a probe")
    seed: int = Field(0, ge=0)
