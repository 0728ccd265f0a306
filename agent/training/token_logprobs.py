"""Log-probabilities of rows in plain torch, where TRL's Triton kernel does not run.

The rows of a micro-batch are read as a prefix tree, so a beginning that they share passes through
the model once, and logits are made only where a token is predicted that counts. GRPO and the
supervised training use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from peft.helpers import disable_input_dtype_casting
from torch.nn import functional

from agent.decoding.prefix_tree import PrefixTree
from agent.training import tree_attention


def fused(device: torch.device) -> bool:
    """Whether TRL's kernel computes log-probabilities on this device: on a GPU."""
    return device.type == "cuda"


def sampled_logprobs(
    model: Any,
    ids_B_T: torch.Tensor,
    attention_B_T: torch.Tensor,
    sampled_B_C: torch.Tensor,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of the last C columns, [B, C]; 0 where nothing was sampled.

    Args:
        model: causal language model.
        ids_B_T: prompts and completions, padded on the right.
        attention_B_T: 1 where a row has a token.
        sampled_B_C: columns of the completions whose tokens the policy sampled.
        temperature: that of the rollout, which divides the logits.
    """
    counted_B_T = functional.pad(sampled_B_C, (ids_B_T.shape[1] - sampled_B_C.shape[1], 0))
    logprobs_K_V, places_N = predictions(model, ids_B_T, attention_B_T, counted_B_T, temperature)
    logps_N = logprobs_K_V[places_N, ids_B_T[counted_B_T]]
    with torch.no_grad():
        entropies_N = -(logprobs_K_V.exp() * logprobs_K_V).sum(-1)[places_N]
    blank = logps_N.new_zeros(sampled_B_C.shape)
    return (
        blank.masked_scatter(sampled_B_C, logps_N),
        blank.masked_scatter(sampled_B_C, entropies_N),
    )


def predictions(
    model: Any,
    ids_B_T: torch.Tensor,
    attention_B_T: torch.Tensor,
    counted_B_T: torch.Tensor,
    temperature: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Distributions from which the counted tokens are drawn, from one pass over the rows' tree.

    Args:
        counted_B_T: True at the tokens that count; the first of a row has no prediction.

    Returns:
        Log-probabilities [K, V] in float32 after each distinct beginning that a counted token
        continues; and [N], which of them each counted token is drawn from, row after row.
    """
    present_B_T = attention_B_T.bool()
    tree = PrefixTree.of(
        [row[here].numpy() for row, here in zip(ids_B_T, present_B_T, strict=True)]
    )
    nodes_B_T = torch.zeros_like(ids_B_T)
    nodes_B_T[present_B_T] = torch.from_numpy(np.concatenate(tree.paths))
    # The node before a token predicts it.
    nodes_K, places_N = nodes_B_T[:, :-1][counted_B_T[:, 1:]].unique(return_inverse=True)
    with _adapter_in_format_of(model):
        logits_K_V = tree_attention.read(model, tree, nodes_K)
    return torch.log_softmax(logits_K_V.float() / temperature, dim=-1), places_N


@contextmanager
def _adapter_in_format_of(model: Any) -> Iterator[None]:
    """Multiply a bfloat16 model's inputs with a bfloat16 copy of the adapter, as rollouts do.

    PEFT would compute in the adapter's float32, which takes a third of a step's time.
    """
    if next(model.parameters()).dtype != torch.bfloat16:
        yield
        return
    with torch.autocast("cpu", torch.bfloat16), disable_input_dtype_casting(model):
        yield
