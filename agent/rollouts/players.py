"""The engine that plays a training: the model in training itself, or servers of vLLM.

`players` chooses it by the section `engine`. Neighbours: `policies/hf_policy.py`, `vllm/policy.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agent.errors import CheckpointError, PolicyError
from agent.policies.base import Policy
from agent.policies.conversations import Conversations
from agent.policies.hf_policy import TransformersPolicy
from agent.settings import EngineSettings, GenerationSettings
from agent.vllm.adapter_sync import AdapterSync
from agent.vllm.policy import VllmPolicy
from agent.vllm.server import Engine, ServedAdapter, VllmServers

Share = Callable[[Any], list[Any]]
"""Gives the values of all ranks in their order; all call it."""


class Players(Protocol):
    """Maker of the policies of a training."""

    def policy(
        self, model: Any, settings: GenerationSettings, step: int, *, alone: bool = False
    ) -> Policy:
        """A policy with the present weights.

        Args:
            model: model in training.
            settings: sampling.
            step: optimizer steps so far.
            alone: only rank 0 calls, instead of all ranks.

        Raises:
            CheckpointError, PolicyError: the weights cannot be sent to the engine.
        """
        ...


@dataclass(frozen=True)
class OwnPlayers:
    """Policies that sample from the model in training itself."""

    tokenizer: Any

    def policy(
        self, model: Any, settings: GenerationSettings, step: int, *, alone: bool = False
    ) -> Policy:
        """A policy of the model; see `Players`."""
        return TransformersPolicy(model, self.tokenizer, settings)


@dataclass
class VllmPlayers:
    """Policies of servers, to which rank 0 sends the adapter."""

    tokenizer: Any
    servers: VllmServers
    sync: AdapterSync | None
    """None on other ranks than 0."""
    share: Share
    concurrency: int

    def policy(
        self, model: Any, settings: GenerationSettings, step: int, *, alone: bool = False
    ) -> Policy:
        """A policy of the servers after they have the weights; see `Players`."""
        conversations = Conversations(model, self.tokenizer, settings)
        adapter: ServedAdapter | None = None
        failure: CheckpointError | PolicyError | None = None
        if self.sync is not None:
            try:
                if self.servers.adapter is None:
                    self.servers.check(conversations.frame_tokens)
                adapter = self.sync.send(model, step)
            except (CheckpointError, PolicyError) as error:
                failure = error
        if not alone:
            # Other ranks wait here; all have the same outcome.
            adapter, failure = self.share((adapter, failure))[0]
        if failure is not None:
            raise failure
        self.servers.adapter = adapter
        return VllmPolicy(conversations, self.servers, settings, concurrency=self.concurrency)


@contextmanager
def players(
    tokenizer: Any,
    settings: EngineSettings,
    engine: Engine | None,
    checkpoints: Path,
    *,
    rank: int,
    share: Share,
) -> Iterator[Players]:
    """The players that the settings name, with open connections for the block.

    Args:
        tokenizer: tokenizer of the model in training.
        settings: the section `engine`.
        engine: running servers; None: the model in training plays.
        checkpoints: folder of the checkpoints.
        rank: number of this rank; 0 sends the weights.
        share: gathers a value of each rank.
    """
    if engine is None:
        yield OwnPlayers(tokenizer)
        return
    servers = VllmServers(engine, settings)
    sync = AdapterSync(servers, checkpoints) if rank == 0 else None
    try:
        yield VllmPlayers(tokenizer, servers, sync, share, settings.concurrency)
    finally:
        if sync is not None:
            sync.close()
        servers.close()
