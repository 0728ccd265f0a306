"""A stand-in of CUDA graphs on the CPU: recorded operations, run again on the same tensors."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class RecordedGraph(TorchDispatchMode):
    """Operations of a block, none of which may ask the card for a value."""

    made = replays = 0

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Any] = []
        RecordedGraph.made += 1

    def pool(self) -> int:
        """Memory that later graphs share."""
        return 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not {"item", "nonzero", "_local_scalar_dense"} & set(str(func).split(".")), func
        out = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        """Run the operations with the tensors that they had."""
        RecordedGraph.replays += 1
        for func, args, kwargs, out in self.operations:
            for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def record_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU have graphs."""
    monkeypatch.setattr("agent.decoding.row_buffer._GRAPHS", "cpu")
    monkeypatch.setattr(RecordedGraph, "replays", 0)
    monkeypatch.setattr(RecordedGraph, "made", 0)
    for name, stand_in in {
        "CUDAGraph": RecordedGraph,
        "graph": lambda graph, *_, **__: graph,
        "stream": nullcontext,
        "current_stream": lambda: None,
    }.items():
        monkeypatch.setattr(f"torch.cuda.{name}", stand_in)
