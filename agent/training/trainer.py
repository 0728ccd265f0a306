"""GRPO on trees: TRL's trainer with rollouts that return more rows than prompts.

A thin subclass. `batching.py` makes the rows and `trl_loss.py` has the loss of a micro-batch.
`logprob_check.py` checks log-probabilities, and `trained_weights.py` and `loss_scale.py` see to
number formats. `checkpoints.py` finds and prunes checkpoints. The caller provides the episodes and
the logging (`tasks/train.py`). A step:

1. Play the groups with the live weights.
2. Make rows, and cut them into micro-batches of at most `micro_batch_tokens`.
3. Sum the gradients of all micro-batches, take an optimizer step, and shorten it if it moved the
   policy too far (`trust_region.py`).

The old log-probabilities come from the trainer, not from the rollout, so ratios are 1. In float32
the two agree to 1e-4, but in bfloat16 single tokens differ by 0.1.

Source: `GRPOTrainer` of TRL 1.15. Departures:

- `training_step` loops over the micro-batches. TRL cuts a batch into a fixed number of equal parts
  and silently drops the remainder.
- `tool_mask` contains env_mask x weight, so a weight multiplies the whole token loss. The
  normaliser is that of the whole step (`batching.py`).
- Checkpoints are renamed into place when they are complete.
- Trained weights are float32, whatever the base is. With float16, the loss is scaled.
- With several ranks (`ranks.py`), each has all episodes and takes its share of the rows. DDP
  averages the gradients of the last micro-batch, with those that the others have summed.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, Trainer

from agent.errors import RolloutError
from agent.models.model_files import gradient_fits
from agent.rollouts.trajectory import Trajectory
from agent.settings import TrainSettings
from agent.training import logprob_check, ranks, token_logprobs, trained_weights
from agent.training.batching import Rows, make_rows, micro_batches
from agent.training.loss_scale import first_scale, needs_scale, scaled_backward
from agent.training.metrics import rollout_metrics
from agent.training.saving import WholeCheckpoints
from agent.training.trl_config import learning_rate_factor, training_arguments
from agent.training.trl_loss import (
    LossInputs,
    RowLossTrainer,
    divergence_rows,
    loss_inputs,
    old_logps,
    sampled_only,
)
from agent.training.trust_region import TrustRegion, step_kl

Rollout = Callable[[PreTrainedModel, int], Sequence[Sequence[Trajectory]]]
"""(live model, step from 1) -> groups of episodes, one group per problem."""

OnStep = Callable[[int, dict[str, float]], Mapping[str, float] | None]
"""Called with the step and the trainer's figures after each step, before a checkpoint."""

State = Callable[[], dict[str, Any]]
"""The caller's part of a checkpoint, as JSON values, for a resume."""


Counted = Callable[[str, Sequence[Any]], Iterable[Any]]
"""(what is done, items) -> the items; the caller sees how many are finished."""


def _no_reward(**_: Any) -> list[float | None]:
    """Placeholder: TRL requires a reward function, but rewards come with the episodes."""
    raise NotImplementedError("rewards come from the environment with the trajectories")


class TreeGRPOTrainer(WholeCheckpoints, RowLossTrainer):
    """Trainer of a model on groups of episode trees.

    Args:
        model: base in the precision of training; its adapter is trained, or a new one.
        tokenizer: its tokenizer, with a padding token.
        settings: the section `train`.
        output_dir: folder of the checkpoints.
        rollout: plays a step's episodes.
        on_step: receives each step's figures; returns more of them for `report_to`.
        state: returns the caller's part of a checkpoint.
        temperature: of the rollout.
        counted: passes on micro-batches, each of which can take seconds.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: TrainSettings,
        *,
        output_dir: Path,
        rollout: Rollout,
        on_step: OnStep,
        state: State,
        temperature: float = 1.0,
        counted: Counted = lambda _, items: items,
    ) -> None:
        adapter = trained_weights.new_adapter(model, settings)
        originals = trained_weights.own_adapter(model)
        arguments = training_arguments(settings, output_dir, temperature)
        if model.is_gradient_checkpointing:
            arguments.gradient_checkpointing = False  # the Trainer would replace what is there
        super().__init__(
            settings,
            model=model,
            reward_funcs=[_no_reward],
            args=arguments,
            # The rollout chooses problems; a row is the number of a step.
            train_dataset=Dataset.from_dict({"prompt": [str(s) for s in range(settings.steps)]}),
            processing_class=tokenizer,
            peft_config=adapter,
        )
        trained_weights.restore_float32(self.live_model, originals)
        self.remove_callback(PrinterCallback)
        self.add_callback(
            TrustRegion(
                settings.max_step_kl,
                weights=self._weights,
                measure=self._step_kl,
                note=lambda name, value: self._note(f"train/step_{name}", value),
            )
        )
        self._needs_scale = needs_scale(self.live_model)
        self._rollout = rollout
        self._on_step = on_step
        self.extra_state = state
        self.current_gradient_accumulation_steps = 1  # training_step loops over micro-batches
        self.folder, self.kept = output_dir, settings.keep_checkpoints
        self._resumed = False
        self._batches: list[LossInputs] = []
        self._learns = False
        self._counted = counted
        # Float32 weights agree to the last digits; shorter ones need other limits.
        self._exact = all(p.dtype == torch.float32 for p in self.live_model.parameters())

    @property
    def live_model(self) -> PreTrainedModel:
        """The model in training, with its adapter."""
        model: Any = self.model
        return model

    def _weights(self) -> Iterator[torch.nn.Parameter]:
        """Trained weights."""
        return (weight for weight in self.live_model.parameters() if weight.requires_grad)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """One item per step, its number from 0, so that a resume skips to the right one.

        Accelerate does not prepare it, because every rank takes every step.
        """
        steps = range(self._settings.steps)
        return DataLoader(steps, batch_size=1, collate_fn=list)  # type: ignore[arg-type]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Create the schedule of `learning_rate_factor`."""
        factor = functools.partial(learning_rate_factor, settings=self._settings)
        self.lr_scheduler: Any = LambdaLR(optimizer or self.optimizer, factor)  # type: ignore[arg-type]
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def training_step(
        self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Play a step's episodes and sum the gradients. Returns the step's loss."""
        self._batches = self._prepare_inputs(inputs)
        started = time.perf_counter()
        model.train()
        scaled = self._needs_scale and self._learns
        scale = first_scale(float(self._batches[0]["num_items_in_batch"])) if scaled else 1.0
        with gradient_fits(self._settings.micro_batch_tokens):
            make = functools.partial(self._make_gradients, model)
            loss = scaled_backward(make, self._weights, scale)
        self._check_logprobs(inputs[0] + 1)
        self._step += 1
        self._note("train/gradient_seconds", time.perf_counter() - started)
        return loss

    def _make_gradients(self, model: torch.nn.Module, scale: float) -> torch.Tensor:
        """Add the gradients of `scale` times the step's loss. Returns the loss."""
        self._compared = []
        loss = torch.zeros((), device=self.accelerator.device)
        for place, batch in enumerate(self._counted("gradient", self._batches), 1):
            # Ranks exchange gradients once, with the last micro-batch.
            with nullcontext() if place == len(self._batches) else self.accelerator.no_sync(model):
                # Without gradients at all, not even momentum moves the weights.
                with torch.set_grad_enabled(self._learns), self.compute_loss_context_manager():
                    part = self.compute_loss(model, batch)
                if self._learns:
                    self.accelerator.backward(scale * part)
            loss += part.detach()
        return loss

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Play a step's episodes. Returns micro-batches with TRL's keys.

        Rows without weight or advantage are left out of the forward passes. The normaliser counts
        all rows. Steps that are due for the check of log-probabilities forward all rows. If no row
        has an effect, the step leaves the weights unchanged. Due steps depend on the step alone and
        not on a resume, so that a resumed run measures its steps on the same tokens.
        """
        step = generation_batch[0] + 1
        rows: Rows = self._generate_and_score_completions(generation_batch)
        learning = [row for row in rows.rows if row.has_gradient]
        self._learns = bool(learning)
        used = rows.rows if logprob_check.due(step) else learning
        self._note("train/rows_forwarded", len(used))
        size, pad = self._settings.micro_batch_tokens, int(self._tokenizer.pad_token_id)
        device = self.accelerator.device
        trees = not token_logprobs.fused(device)
        of_rank = {"rank": ranks.index(), "ranks": ranks.count()}
        return [
            loss_inputs(batch, rows.normaliser, device)
            for batch in micro_batches(used, size, pad, trees=trees, **of_rank)
        ]

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        """Play a step's groups with the live weights. Returns their rows.

        Raises:
            RolloutError: no episode of the step is valid.
        """
        step = inputs[0] + 1
        started = time.perf_counter()
        self.live_model.eval()
        with torch.no_grad():
            groups = self._rollout(self.live_model, step)
        seconds = time.perf_counter() - started
        trees = [tree for group in groups for tree in group]
        if not any(tree.void is None for tree in trees):
            reason = trees[0].void if trees else "none"
            raise RolloutError(
                f"step {step}: all {len(trees)} episodes are void (first reason: {reason}). Check "
                "that the environment runs."
            )
        rows = make_rows(groups, self._settings)
        for name, value in rollout_metrics(rows, trees, seconds).items():
            self._note(name, value)
        return rows

    def _check_logprobs(self, step: int) -> None:
        """Measure the mismatch of rollout and trainer; check it when due."""
        if not self._compared:
            return
        trained_weights.require_finite(self.live_model, step)
        compared = [pair for part in ranks.gather(self._compared) for pair in part]
        rollout, trainer = (np.concatenate(side) for side in zip(*compared, strict=True))
        mismatch = logprob_check.measure(rollout, trainer)
        self._note("train/logprob_mismatch_mean", mismatch.mean)
        self._note("train/logprob_mismatch_max", mismatch.max)
        # TRL's figure counts weights as tokens.
        self._note("train/entropy", -float(trainer.mean()) if len(trainer) else 0.0)
        # After a resume, the first step with a comparison is checked too.
        if self._resumed or logprob_check.due(step) or not math.isfinite(mismatch.max):
            logprob_check.require_agreement(mismatch, exact=self._exact, step=step)
        self._resumed = False

    def _step_kl(self) -> float:
        """Divergence of the policy from the one that sampled, on a share of the step's rows."""
        shares = divergence_rows(self._batches)
        after = [
            sampled_only(self._logps_of(self.model, share), share)
            for share in self._counted("step limit", shares)
        ]
        # All ranks measure the same divergence, so they shorten the step alike.
        parts = ranks.gather((old_logps(shares), np.concatenate([np.zeros(0), *after])))
        return step_kl(*(np.concatenate(side) for side in zip(*parts, strict=True)))

    def _note(self, name: str, value: float) -> None:
        self._metrics["train"][name].append(float(value))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as TRL does, then call `on_step`, and report what it returns."""
        super().log(logs, start_time)
        if "loss" in logs and (more := self._on_step(self.state.global_step, dict(logs))):
            Trainer.log(self, dict(more))  # TRL would add its own figures again

    def resume(self, checkpoint: Path | None) -> None:
        """Train to the last step, from a checkpoint if one is given."""
        self._resumed = checkpoint is not None
        self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    def checkpoint_bytes(self) -> int:
        """Estimated size of a checkpoint: trained weights, two moments each, and small files."""
        trained = [p for p in self.live_model.parameters() if p.requires_grad]
        return sum(p.numel() * (p.element_size() + 8) for p in trained) + 20_000_000

    def save_result(self, folder: Path) -> None:
        """Save the adapter and the tokenizer, for `from_pretrained`."""
        self.live_model.save_pretrained(str(folder))
        self._tokenizer.save_pretrained(str(folder))
