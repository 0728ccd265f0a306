"""Tensors of a micro-batch with the keys of TRL's loss, and what the trainer measures on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from agent.training.batching import MicroBatch

LossInputs = dict[str, torch.Tensor]
"""A micro-batch by TRL's names. `env_mask`: sampled tokens; `families`: rows that begin alike."""

KL_EVERY = 10
"""Every tenth family of rows measures a step's divergence, so that few beginnings are read."""
KL_LEAST = 8
"""The first families always do, because the mean over one or two rows is mostly noise."""


def tensors(batch: MicroBatch, normaliser: float, device: torch.device) -> LossInputs:
    """A micro-batch for the loss; columns before `context` are the prompt."""
    at = batch.context
    weighted_B_T = batch.env_mask_B_T * batch.weights_B[:, None]
    arrays = {
        "prompt_ids": batch.ids_B_T[:, :at],
        "prompt_mask": batch.attention_B_T[:, :at],
        "completion_ids": batch.ids_B_T[:, at:],
        "completion_mask": batch.attention_B_T[:, at:],
        "tool_mask": weighted_B_T[:, at:],
        "advantages": batch.advantages_B,
        "sampling_per_token_logps": batch.logprobs_B_T[:, at:],
        "env_mask": batch.env_mask_B_T[:, at:],
        "families": batch.families_B,
    }
    return {
        **{name: torch.from_numpy(array).to(device) for name, array in arrays.items()},
        "num_items_in_batch": torch.tensor(normaliser, device=device),
    }


def sampled_only(values_B_T: torch.Tensor, inputs: LossInputs) -> np.ndarray:
    """Values of the sampled tokens, [N]."""
    return values_B_T[inputs["env_mask"]].float().cpu().numpy()


def old_logps(batches: Sequence[LossInputs]) -> np.ndarray:
    """Log-probabilities of the sampled tokens under the policy that sampled them, [N]."""
    old = [sampled_only(batch["old_per_token_logps"], batch) for batch in batches]
    return np.concatenate([np.zeros(0), *old])


def divergence_rows(batches: Sequence[LossInputs]) -> list[LossInputs]:
    """The families of a step that measure it, however the rows are cut and dealt."""
    shares = []
    for batch in batches:
        families = batch["families"]
        rows = (families % KL_EVERY == 0) | (families >= 0) & (families < KL_LEAST)
        if rows.any():
            shares.append({name: part[rows] for name, part in batch.items() if part.dim()})
    return shares
