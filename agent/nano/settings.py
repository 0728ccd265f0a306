"""Settings of the nano model and its warm start: `warmstart.nano` of params.yaml."""

from __future__ import annotations

from pydantic import Field

from env.settings import Settings


class ModelSettings(Settings):
    """Llama-style decoder."""

    hidden: int = Field(128, ge=32, le=2048)
    layers: int = Field(3, ge=2, le=24)
    heads: int = Field(4, ge=1, le=32)
    mlp: int = Field(256, ge=32)
    rope_theta: float = Field(10_000.0, gt=0)
    vocab: int = Field(600, ge=300, le=8192, description="most entries of the tokenizer")
    context: int = Field(512, ge=64, description="most positions")


class NanoSettings(Settings):
    """How the nano base is taught before GRPO."""

    model: ModelSettings = ModelSettings()
    trees: int = Field(9000, ge=100, description="demonstration trees")
    steps: int = Field(1200, ge=1, description="most optimizer steps")
    drill_steps: int = Field(90, ge=0, description="steps of pure copying drills at the start")
    drill_every: int = Field(12, ge=1, description="then one drill batch in so many")
    batch_tokens: int = Field(2048, ge=128)
    learning_rate: float = Field(3e-3, gt=0)
    observation_weight: float = Field(0.1, ge=0)
    name_weight: float = Field(3.0, ge=0, description="loss weight of copied names")
    probe_greedy: float = Field(0.97, ge=0, le=1, description="binding probe, greedy")
    probe_sampled: float = Field(0.95, ge=0, le=1, description="binding probe at T = 1")
    seed: int = Field(0, ge=0)
