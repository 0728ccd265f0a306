"""Log-probabilities of sampled tokens in plain torch, where TRL's Triton kernel does not run."""

from __future__ import annotations

from typing import Any

import torch


def fused(ids: torch.Tensor) -> bool:
    """Whether TRL's kernel computes log-probabilities of these ids: on a GPU."""
    return ids.is_cuda


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
        ids_B_T: prompts and completions.
        attention_B_T: 1 where a row has a token.
        sampled_B_C: columns of the completions whose tokens the policy sampled.
        temperature: that of the rollout, which divides the logits.
    """
    columns = sampled_B_C.shape[1]
    # [B, C, V]: the column before each completion token predicts it.
    logits = model(
        input_ids=ids_B_T,
        attention_mask=attention_B_T,
        logits_to_keep=columns + 1,
        use_cache=False,
    ).logits[:, :-1]
    logprobs_N_V = torch.log_softmax(logits[sampled_B_C].float() / temperature, dim=-1)
    targets_N = ids_B_T[:, -columns:][sampled_B_C]
    logps_N = logprobs_N_V.gather(-1, targets_N[:, None])[:, 0]
    with torch.no_grad():
        entropies_N = -(logprobs_N_V.exp() * logprobs_N_V).sum(-1)
    blank = logps_N.new_zeros(sampled_B_C.shape)
    return (
        blank.masked_scatter(sampled_B_C, logps_N),
        blank.masked_scatter(sampled_B_C, entropies_N),
    )
