"""GRPO on trees: TRL's trainer with rollouts that return more rows than prompts.

A thin subclass. The logic is in pure modules: `batching.py` makes the rows, `logprob_check.py`
checks log-probabilities, `checkpoints.py` finds and prunes checkpoints. The caller provides the
episodes and the logging (`tasks/train.py`). A step:

1. Play the groups with the live weights.
2. Make rows, and cut them by length into micro-batches of at most `micro_batch_tokens`.
3. Repeat `num_iterations` times: sum the gradients of all micro-batches, take an optimizer step,
   and shorten it if it moved the policy too far (`trust_region.py`). The Trainer calls one such
   update a step.

The old log-probabilities come from the trainer's first update, not from the rollout. In float32
the two agree to 1e-4, but in bfloat16 single tokens differ by 0.1, so ratios would not start at 1.
The reference of `kl_beta` is the base: the model with its adapter disabled, or a frozen copy.

Source: `GRPOTrainer` of TRL 1.15. Departures:

- `training_step` loops over the micro-batches. TRL cuts a batch into a fixed number of equal parts
  and silently drops the remainder.
- `tool_mask` contains env_mask x weight, so a weight multiplies the whole token loss, divergence
  included. The normaliser is that of the whole step (`batching.py`).
- Checkpoints are renamed into place when they are complete.
- With several ranks (`ranks.py`), each has all episodes and takes its share of the rows. DDP
  averages the gradients of the last micro-batch, with those that the others have summed.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from datasets import Dataset
from peft import LoraConfig
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from agent.errors import RolloutError
from agent.rollouts.trajectory import Trajectory
from agent.settings import TrainSettings
from agent.training import checkpoints, logprob_check, ranks
from agent.training.batching import MicroBatch, Rows, make_rows, micro_batches
from agent.training.trl_config import learning_rate_factor, training_arguments
from agent.training.trust_region import TrustRegion, step_kl

Rollout = Callable[[PreTrainedModel, int], Sequence[Sequence[Trajectory]]]
"""(live model, step from 1) -> groups of episodes, one group per problem."""

OnStep = Callable[[int, dict[str, float]], None]
"""Called with the step and the trainer's figures after each step, before a checkpoint."""

State = Callable[[], dict[str, Any]]
"""The caller's part of a checkpoint, as JSON values, for a resume."""

_KL_EVERY = 3
"""Every third row, by length, measures a step's divergence; all rows would cost 10 % more time."""


def _no_reward(**_: Any) -> list[float | None]:
    """Placeholder: TRL requires a reward function, but rewards come with the episodes."""
    raise NotImplementedError("rewards come from the environment with the trajectories")


class TreeGRPOTrainer(GRPOTrainer):
    """Trainer of a model on groups of episode trees.

    Args:
        model: base in the precision of training; `method: lora` adds an adapter.
        tokenizer: its tokenizer, with a padding token.
        settings: the section `train`.
        output_dir: folder of the checkpoints.
        rollout: plays a step's episodes.
        on_step: receives each step's figures.
        state: returns the caller's part of a checkpoint.
        engine: engine of the rollout, which decides the limits of the check of log-probabilities.
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
        engine: Literal["own", "vllm"] = "own",
    ) -> None:
        lora = LoraConfig(
            task_type="CAUSAL_LM",
            r=settings.lora.r,
            lora_alpha=settings.lora.alpha,
            lora_dropout=0.0,
            target_modules="all-linear",
            bias="none",
        )
        frozen = settings.kl_beta > 0 and settings.method == "full"
        self._reference = copy.deepcopy(model).eval().requires_grad_(False) if frozen else None
        super().__init__(
            model=model,
            reward_funcs=[_no_reward],
            args=training_arguments(settings, output_dir),
            # The rollout chooses problems; a row is the number of a step.
            train_dataset=Dataset.from_dict({"prompt": [str(s) for s in range(settings.steps)]}),
            processing_class=tokenizer,
            peft_config=lora if settings.method == "lora" else None,
        )
        self.remove_callback(PrinterCallback)
        self.add_callback(
            TrustRegion(
                settings.max_step_kl,
                weights=lambda: (p for p in self.live_model.parameters() if p.requires_grad),
                measure=self._step_kl,
                note=lambda name, value: self._note(f"train/step_{name}", value),
            )
        )
        self.beta = settings.kl_beta
        # Only TRL's loss reads these here; before `super().__init__`, TRL would start an engine.
        self.use_vllm = settings.importance_clip is not None
        self.vllm_importance_sampling_correction = self.use_vllm
        if self._reference is not None:
            self._reference.to(self.accelerator.device)
            # TRL does the same with its own reference; only a GPU uses it.
            add_fused_lm_head(self._reference, temperature=self.temperature)
        self._settings = settings
        self._rollout = rollout
        self._on_step = on_step
        self._extra_state = state
        self.current_gradient_accumulation_steps = 1  # training_step loops over micro-batches
        self._folder = output_dir
        self._saving: Path | None = None
        self._resumed = False
        self._batches: list[dict[str, torch.Tensor]] = []
        self._learns = False
        self._compared: list[tuple[np.ndarray, np.ndarray]] = []
        self._inputs: dict[str, torch.Tensor] | None = None
        self._engine = engine
        # Float32 weights agree to the last digits; shorter ones need other limits.
        self._exact = all(p.dtype == torch.float32 for p in self.live_model.parameters())

    @property
    def live_model(self) -> PreTrainedModel:
        """The model in training, with its adapter."""
        model: Any = self.model
        return model

    def get_train_dataloader(self) -> DataLoader[Any]:
        """One item per update, its number from 0, so that a resume skips to the right one.

        Accelerate does not prepare it, because every rank takes every update.
        """
        updates = range(self._settings.steps * self._settings.num_iterations)
        return DataLoader(updates, batch_size=1, collate_fn=list)  # type: ignore[arg-type]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Create the schedule of `learning_rate_factor`."""
        factor = functools.partial(learning_rate_factor, settings=self._settings)
        self.lr_scheduler: Any = LambdaLR(optimizer or self.optimizer, factor)  # type: ignore[arg-type]
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def training_step(
        self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Play at the first update of a step; sum the gradients. Returns the update's loss."""
        step, update = divmod(inputs[0], self._settings.num_iterations)
        if update == 0:
            self._batches = self._prepare_inputs([step])
        started = time.perf_counter()
        model.train()
        self._compared = []
        loss = torch.zeros((), device=self.accelerator.device)
        for place, batch in enumerate(self._batches, 1):
            # Ranks exchange gradients once, with the last micro-batch.
            last = place == len(self._batches)
            with nullcontext() if last else self.accelerator.no_sync(model):
                # Without gradients at all, not even momentum moves the weights.
                with torch.set_grad_enabled(self._learns), self.compute_loss_context_manager():
                    part = self.compute_loss(model, batch)
                if self._learns:
                    self.accelerator.backward(part)
            loss += part.detach()
        if update == 0:
            self._check_logprobs(step + 1)
        else:
            self._note_ratios()
        self._step += 1
        self._note("train/gradient_seconds", time.perf_counter() - started)
        return loss

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Play a step's episodes. Returns micro-batches with TRL's keys.

        Rows without effect on the gradient are left out of the forward passes: no weight, or no
        advantage without a `kl_beta`. The normaliser counts all rows. Steps that are due for the
        check of log-probabilities forward all rows. If no row has an effect, the step leaves the
        weights unchanged. Due steps depend on the step alone and not on a resume, so that a resumed
        run measures its steps on the same tokens.
        """
        step = generation_batch[0] + 1
        rows: Rows = self._generate_and_score_completions(generation_batch)
        learning = [
            row for row in rows.rows if row.has_gradient or (self.beta > 0 and row.weight > 0)
        ]
        self._learns = bool(learning)
        used = rows.rows if logprob_check.due(step, self._settings.logprob_check) else learning
        pad = int(self._tokenizer.pad_token_id)
        self._note("train/rows_forwarded", len(used))
        size = self._settings.micro_batch_tokens
        batches = [
            self._tensors(batch, rows.normaliser)
            for batch in micro_batches(used, size, pad, rank=ranks.index(), ranks=ranks.count())
        ]
        if self.beta > 0:
            for batch in batches:
                batch["ref_per_token_logps"] = self._reference_logps(batch)
        return batches

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
            reasons = sorted({tree.void or "" for tree in trees})
            raise RolloutError(
                f"step {step}: all {len(trees)} episodes are void (first reason: "
                f"{reasons[0] if reasons else 'none'}). Check that the environment runs."
            )
        rows = make_rows(groups, self._settings, np.random.default_rng([self.args.seed, step]))
        sampled = sum(tree.sampled_tokens for tree in trees)
        for name, value in {
            "train/rows": len(rows.rows),
            "train/rows_cut": rows.count("cut"),
            "train/zero_variance_groups": rows.flat_groups,
            "train/sampled_tokens": sampled,
            "train/tokens_per_second": sampled / max(seconds, 1e-9),
            "train/rollout_seconds": seconds,
        }.items():
            self._note(name, value)
        return rows

    def _tensors(self, batch: MicroBatch, normaliser: float) -> dict[str, torch.Tensor]:
        """A micro-batch with the keys of TRL's loss; columns before `context` are the prompt."""
        device, at = self.accelerator.device, batch.context
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
            "places": batch.places_B,
        }
        tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        return tensors | {"num_items_in_batch": torch.tensor(normaliser, device=device)}

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, torch.Tensor],
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
                self._of_sampled(inputs["sampling_per_token_logps"]),
                self._of_sampled(self._logps_B_T),
            )
        )
        return loss

    def _of_sampled(self, values_B_T: torch.Tensor) -> np.ndarray:
        return values_B_T[self._sampled_B_T].float().cpu().numpy()

    @torch.no_grad()
    def _logps_of(self, model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
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

    def _reference_logps(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Log-probabilities of a micro-batch under the base, [B, T]."""
        if self._reference is not None:
            return self._logps_of(self._reference, batch)
        adapted: Any = self.live_model
        with adapted.disable_adapter():
            return self._logps_of(adapted, batch)

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
        if input_ids.is_cuda:
            found = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, **kwargs
            )
        else:
            sampled = self._sampled_B_T
            # [B, T, V]: the column before each completion token predicts it.
            logits = model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                logits_to_keep=logits_to_keep + 1,
                use_cache=False,
            ).logits[:, :-1]
            logprobs_N_V = torch.log_softmax(logits[sampled].float() / self.temperature, dim=-1)
            targets_N = input_ids[:, -logits_to_keep:][sampled]
            logps_N = logprobs_N_V.gather(-1, targets_N[:, None])[:, 0]
            with torch.no_grad():
                entropies_N = -(logprobs_N_V.exp() * logprobs_N_V).sum(-1)
            blank = logps_N.new_zeros(sampled.shape)
            found = (
                blank.masked_scatter(sampled, logps_N),
                blank.masked_scatter(sampled, entropies_N),
                None,
            )
        self._logps_B_T = found[0].detach()
        if self.use_vllm and self._inputs is not None:
            self._correct_sampling(self._inputs)
        return found

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

    def _check_logprobs(self, step: int) -> None:
        """Measure the mismatch of rollout and trainer; check it when due."""
        if not self._compared:
            return
        compared = [pair for part in ranks.gather(self._compared) for pair in part]
        rollout, trainer = (np.concatenate(side) for side in zip(*compared, strict=True))
        found = logprob_check.measure(rollout, trainer)
        self._note("train/logprob_mismatch_mean", found.mean)
        self._note("train/logprob_mismatch_max", found.max)
        # After a resume, the first step with a comparison is checked too.
        due = self._resumed or logprob_check.due(step, self._settings.logprob_check)
        if due or not math.isfinite(found.max):
            logprob_check.check(
                found,
                self._settings.logprob_check,
                exact=self._exact,
                step=step,
                engine=self._engine,
            )
        self._resumed = False

    @staticmethod
    def _old_logps(batches: Sequence[dict[str, torch.Tensor]]) -> np.ndarray:
        """Log-probabilities of the sampled tokens under the policy that sampled them."""
        old = [b["old_per_token_logps"][b["env_mask"]].float().cpu().numpy() for b in batches]
        return np.concatenate([np.zeros(0), *old])

    def _note_ratios(self) -> None:
        """Record the mean deviation of a later update's importance ratios from 1."""
        now = np.concatenate([np.zeros(0), *(trainer for _, trainer in self._compared)])
        parts = ranks.gather(np.expm1(now - self._old_logps(self._batches)))
        if (moved := np.concatenate(parts)).size:
            self._note("train/ratio_deviation", float(np.abs(moved).mean()))

    def _step_kl(self) -> float:
        """Divergence of the policy from the one that sampled, on a share of the step's rows."""
        shares = []
        for batch in self._batches:
            # Every third row of the step, however the rows are cut and dealt.
            rows = batch["places"] % _KL_EVERY == 0
            if rows.any():
                shares.append({name: part[rows] for name, part in batch.items() if part.dim()})
        after = [self._logps_of(self.model, s)[s["env_mask"]].float().cpu().numpy() for s in shares]
        # All ranks measure the same divergence, so they shorten the step alike.
        parts = ranks.gather((self._old_logps(shares), np.concatenate([np.zeros(0), *after])))
        return step_kl(*(np.concatenate(side) for side in zip(*parts, strict=True)))

    def _note(self, name: str, value: float) -> None:
        self._metrics["train"][name].append(float(value))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as TRL does, then call `on_step`."""
        super().log(logs, start_time)
        if "loss" in logs:
            self._on_step(self.state.global_step // self._settings.num_iterations, dict(logs))

    def resume(self, checkpoint: Path | None) -> None:
        """Train to the last step, from a checkpoint if one is given."""
        self._resumed = checkpoint is not None
        self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._saving) if self._saving else super()._get_output_dir(trial)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Write the checkpoint under another name, the caller's state last, and rename it."""
        if ranks.index():
            self.store_flos()  # rank 0 waits for it when it saves
            return
        folder = self._folder
        with checkpoints.writing(folder, self.state.global_step) as aside:
            self._saving = aside.parent
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._saving = None
            step = self.state.global_step // self._settings.num_iterations
            state = {"step": step, **self._extra_state()}
            (aside / checkpoints.STATE).write_text(json.dumps(state), encoding="utf-8")
        checkpoints.prune(folder, self._settings.keep_checkpoints)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no card, since a checkpoint is not a release."""

    def checkpoint_bytes(self) -> int:
        """Estimated size of a checkpoint: trained weights, two moments each, and small files."""
        trained = [p for p in self.live_model.parameters() if p.requires_grad]
        return sum(p.numel() * (p.element_size() + 8) for p in trained) + 20_000_000

    def save_result(self, folder: Path) -> None:
        """Save the adapter or the whole model, and the tokenizer, for `from_pretrained`."""
        self.live_model.save_pretrained(str(folder))
        self._tokenizer.save_pretrained(str(folder))
