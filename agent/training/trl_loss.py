"""TRL's loss on the rows of trees, with the log-probabilities that the trainer compares.

All that depends on the inside of the loss of TRL 1.15 is here; `trainer.py` has the steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from trl.trainer.grpo_trainer import GRPOTrainer

from agent.settings import TrainSettings
from agent.training import loss_inputs, token_logprobs

if GRPOTrainer.__name__ != "GRPOTrainer":
    # Its subclass would inherit another loss, and attach no adapter.
    raise ImportError(
        f"TRL's GRPOTrainer was replaced by {GRPOTrainer.__module__}.{GRPOTrainer.__name__} before "
        "this import. Import agent.training.trainer first, and then unsloth."
    )


class RowLossTrainer(GRPOTrainer):
    """Loss of micro-batches of rows (`loss_inputs.tensors`) instead of prompts and completions.

    Args:
        settings: the section `train`.
        of_trl: arguments of TRL's trainer.
    """

    def __init__(self, settings: TrainSettings, **of_trl: Any) -> None:
        super().__init__(**of_trl)
        self._settings = settings
        self.beta = settings.kl_beta
        # Only TRL's loss reads these here; before `super().__init__`, TRL would start an engine.
        self.use_vllm = settings.importance_clip is not None
        self.vllm_importance_sampling_correction = self.use_vllm
        self._compared: list[tuple[np.ndarray, np.ndarray]] = []
        self._inputs: dict[str, torch.Tensor] | None = None

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: loss_inputs.LossInputs,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        """TRL's loss; stores the sampled tokens' log-probabilities of rollout and trainer."""
        self._sampled_B_T, self._inputs = inputs["env_mask"], inputs
        # Without old log-probabilities TRL uses the present ones, so ratios are exactly 1.
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        self._inputs = None
        inputs.setdefault("old_per_token_logps", self._logps_B_T)
        self._compared.append(
            (
                loss_inputs.sampled_only(inputs["sampling_per_token_logps"], inputs),
                loss_inputs.sampled_only(self._logps_B_T, inputs),
            )
        )
        return loss

    @torch.no_grad()
    def _logps_of(self, model: Any, batch: loss_inputs.LossInputs) -> torch.Tensor:
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
        if self.use_vllm and self._inputs is not None:
            self._correct_sampling(self._inputs)
        return outputs

    def _correct_sampling(self, inputs: dict[str, torch.Tensor]) -> None:
        """Add the weights that correct a loss on samples of another engine, [B, T].

        The weight of a token is its probability in the trainer's first pass over that in the
        engine, at most `importance_clip`; other columns have 1.

        Source: truncated importance sampling, as TRL 1.15 does with `use_vllm`.
        """
        if "importance_sampling_ratio" not in inputs:
            apart = self._logps_B_T - inputs["sampling_per_token_logps"]
            weights = torch.where(inputs["env_mask"], apart, 0.0).exp()
            weights = weights.clamp(max=self._settings.importance_clip)
            inputs["importance_sampling_ratio"] = weights
