"""TRL's loss on the rows of trees, with the log-probabilities that the trainer compares.

All that depends on the inside of the loss of TRL 1.15 is here; `trainer.py` has the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from trl.trainer.grpo_trainer import GRPOTrainer

from agent.settings import TrainSettings
from agent.training import token_logprobs
from agent.training.batching import MicroBatch

if GRPOTrainer.__name__ != "GRPOTrainer":
    # Its subclass would inherit another loss, and attach no adapter.
    raise ImportError(
        f"TRL's GRPOTrainer was replaced by {GRPOTrainer.__module__}.{GRPOTrainer.__name__} before "
        "this import. Import agent.training.trainer first, and then unsloth."
    )

LossInputs = dict[str, torch.Tensor]
"""A micro-batch by TRL's names. `env_mask`: sampled tokens; `families`: rows that begin alike."""

KL_EVERY = 10
"""Every tenth family of rows measures a step's divergence, so that few beginnings are read."""
KL_LEAST = 8
"""The first families always do, because the mean over one or two rows is mostly noise."""


def loss_inputs(batch: MicroBatch, normaliser: float, device: torch.device) -> LossInputs:
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


class RowLossTrainer(GRPOTrainer):
    """Loss of micro-batches of rows (`loss_inputs`) instead of prompts and completions.

    Args:
        settings: the section `train`.
        of_trl: arguments of TRL's trainer.
    """

    def __init__(self, settings: TrainSettings, **of_trl: Any) -> None:
        super().__init__(**of_trl)
        self._settings = settings
        self._compared: list[tuple[np.ndarray, np.ndarray]] = []

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: LossInputs,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        """TRL's loss; keeps the sampled tokens' log-probabilities of rollout and trainer.

        Those before the step stay in `inputs`, for `old_logps`.
        """
        self._sampled_B_T = inputs["env_mask"]
        # Without old log-probabilities TRL uses the present ones, so ratios are exactly 1.
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        inputs.setdefault("old_per_token_logps", self._logps_B_T)
        self._compared.append(
            (
                sampled_only(inputs["sampling_per_token_logps"], inputs),
                sampled_only(self._logps_B_T, inputs),
            )
        )
        return loss

    @torch.no_grad()
    def _logps_of(self, model: Any, batch: LossInputs) -> torch.Tensor:
        """Log-probabilities of a micro-batch's sampled tokens, [B, T]; 0 elsewhere on a CPU."""
        self._sampled_B_T = batch["env_mask"]
        with self.compute_loss_context_manager():
            self._get_per_token_logps_and_entropies(
                model,
                torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
                torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
                batch["completion_ids"].shape[1],
            )
        return self._logps_B_T

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        **kwargs: Any,
    ) -> Any:
        """Log-probabilities and entropies of the completion columns, at the rollout's temperature.

        TRL 1.15 has only a Triton kernel for this. On a CPU, plain torch computes the sampled
        tokens, and the other columns are 0.
        """
        if token_logprobs.fused(input_ids.device):
            outputs = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, **kwargs
            )
        else:
            logps, entropies = token_logprobs.sampled_logprobs(
                model, input_ids, attention_mask, self._sampled_B_T, self.temperature
            )
            outputs = (logps, entropies, None)
        self._logps_B_T = outputs[0].detach()
        return outputs
