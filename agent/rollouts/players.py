"""The engine that plays a training: the model in training itself, or a server of vLLM.

`players` chooses it by the section `engine`. Neighbours: `policies/hf_policy.py`, `vllm/policy.py`.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agent.errors import CheckpointError, disk_is_full
from agent.policies.base import Policy
from agent.policies.conversations import Conversations
from agent.policies.hf_policy import TransformersPolicy
from agent.settings import GenerationSettings
from agent.vllm.policy import VllmPolicy
from agent.vllm.server import ADAPTERS, Engine, VllmServer


class Players(Protocol):
    """Maker of the policies of a training."""

    def policy(self, model: Any, settings: GenerationSettings, step: int) -> Policy:
        """A policy with the present weights.

        Args:
            model: model in training.
            settings: sampling.
            step: optimizer steps so far; equal steps have equal weights.

        Raises:
            CheckpointError, PolicyError: the weights cannot be sent to the engine.
        """
        ...


@dataclass(frozen=True)
class OwnPlayers:
    """Policies that sample from the model in training itself."""

    tokenizer: Any

    def policy(self, model: Any, settings: GenerationSettings, step: int) -> Policy:
        """A policy of the model; see `Players`."""
        return TransformersPolicy(model, self.tokenizer, settings)


@dataclass
class VllmPlayers:
    """Policies of a server, to which the adapter in training goes as files.

    Each version has a name and a folder of its own. vLLM looks keys and values up by both, so a
    name or folder in use again would bring back those of earlier weights. `load_inplace` is not
    used: it makes vLLM 0.31.0 read the adapter again for every decoded token
    (`lora/worker_manager.py`).
    """

    tokenizer: Any
    server: VllmServer
    folder: Path
    """Folder of the adapters, which the server can read."""
    mark: str = field(default_factory=lambda: secrets.token_hex(4))
    """A run after this one has other names."""

    def policy(self, model: Any, settings: GenerationSettings, step: int) -> Policy:
        """A policy of the server after it has the weights; see `Players`."""
        conversations = Conversations(model, self.tokenizer, settings)
        former = self.server.adapter
        if former is None:
            self.server.check(conversations.frame_tokens)
        adapter = self.folder / f"step-{step}-{self.mark}"
        if adapter != former:
            self._write(model, adapter)
            self.server.serve(adapter)
            if former is not None:
                shutil.rmtree(former, ignore_errors=True)
        return VllmPolicy(conversations, self.server, settings)

    def _write(self, model: Any, adapter: Path) -> None:
        try:
            model.save_pretrained(str(adapter), selected_adapters=["default"])
        except Exception as error:
            if not isinstance(error, OSError) and not disk_is_full(error):
                raise
            raise CheckpointError(
                f"{adapter}: the adapter cannot be written for the engine ({error}). Make room and "
                "run the same command again to resume."
            ) from error


@contextmanager
def players(tokenizer: Any, engine: Engine | None, checkpoints: Path) -> Iterator[Players]:
    """The players that the settings name, with open connections for the block.

    Args:
        tokenizer: tokenizer of the model in training.
        engine: the server; None: the model in training plays.
        checkpoints: folder of the checkpoints.
    """
    if engine is None:
        yield OwnPlayers(tokenizer)
        return
    server, folder = VllmServer(engine), checkpoints.resolve() / ADAPTERS
    shutil.rmtree(folder, ignore_errors=True)  # what a killed run left
    try:
        yield VllmPlayers(tokenizer, server, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        server.close()
