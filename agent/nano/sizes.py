"""Sizes and rates of the nano model's warm start; in params.yaml are only its steps and seed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NanoModelSettings:
    """Sizes of the Llama model; `hidden` is an even multiple of `heads`."""

    hidden: int = 128
    layers: int = 3
    heads: int = 4
    mlp: int = 256
    rope_theta: float = 1e6
    """Large: most of a head ignores distance."""
    vocab: int = 720
    """Most entries of the tokenizer."""
    context: int = 512
    """Most positions."""


@dataclass(frozen=True)
class NanoSettings:
    """Warm start of the nano base before GRPO."""

    steps: int = 800
    """Most optimizer steps."""
    seed: int = 0
    model: NanoModelSettings = NanoModelSettings()
    min_steps: int = 600
    """Steps before the probe can end the warm start."""
    warmup_steps: int = 40
    drill_steps: int = 60
    """Steps of drills at the start."""
    drill_every: int = 6
    """Later, one drill batch in this many."""
    batch_tokens: int = 2048
    learning_rate: float = 1.5e-3
    embedding_rate: float = 0.2
    """Share of the rate for embeddings, whose wiring is easily undone."""
    observation_weight: float = 0.1
    name_weight: float = 3.0
    """Loss weight of names and fields."""
    slips: float = 0.15
    """Conversations with a broken turn."""
    noise: float = 0.01
    """Written tokens replaced at random."""
    probe_greedy: float = 0.97
    """Right trees and readers that end the warm start, greedy."""
    probe_sampled: float = 0.93
    """The same at T = 1."""
    probe_every: int = 100
    """Steps between probes."""
    probe_pairs: int = 200
    """Trees and readers of a probe."""
