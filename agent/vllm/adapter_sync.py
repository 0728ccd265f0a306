"""The adapter in training, sent to servers of vLLM as files.

Each version has a name and a folder of its own. vLLM looks keys and values up by both, so a name or
folder in use again would bring back those of earlier weights. `load_inplace` is not used: it makes
vLLM 0.31.0 read the adapter again for every decoded token (`lora/worker_manager.py`).
"""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import Any

from agent.errors import CheckpointError, disk_is_full
from agent.vllm.server import ServedAdapter, VllmServers

FOLDER = ".adapters"
"""Name of the folder of sent adapters, beside the checkpoints."""


class AdapterSync:
    """Sends the adapter of a model in training to the servers.

    Args:
        servers: the servers.
        checkpoints: folder of the checkpoints; all servers can read it.
    """

    def __init__(self, servers: VllmServers, checkpoints: Path) -> None:
        self._servers = servers
        self._folder = checkpoints.resolve() / FOLDER
        # A run after this one has other names.
        self._mark = secrets.token_hex(4)
        shutil.rmtree(self._folder, ignore_errors=True)

    def send(self, model: Any, step: int) -> ServedAdapter:
        """Serve the model's adapter; without effect for weights that are served.

        Args:
            model: model with an adapter, as PEFT wraps it.
            step: optimizer steps so far; equal steps have equal weights.

        Raises:
            CheckpointError: the adapter cannot be written.
            PolicyError: a server refuses the adapter, or all are lost.
        """
        former = self._servers.adapter
        path = self._folder / f"step-{step}-{self._mark}"
        adapter = ServedAdapter(name=path.name, path=str(path))
        if adapter == former:
            return adapter
        try:
            model.save_pretrained(str(path), selected_adapters=["default"])
        except Exception as error:
            if not isinstance(error, OSError) and not disk_is_full(error):
                raise
            raise CheckpointError(
                f"{path}: the adapter cannot be written for the engine ({error}). Make room and "
                "run the same command again to resume."
            ) from error
        self._servers.serve(adapter)
        if former is not None:
            shutil.rmtree(former.path, ignore_errors=True)
        return adapter

    def close(self) -> None:
        """Delete the last adapter, which the servers then no longer play."""
        shutil.rmtree(self._folder, ignore_errors=True)
