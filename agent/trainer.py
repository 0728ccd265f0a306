"""GRPO on trees: TRL's trainer with rollouts that return more rows than prompts.

A thin subclass. What is logic lives beside it and is pure: `agent/batching.py` makes the rows,
`agent/parity.py` judges log-probabilities, `agent/checkpoints.py` finds and prunes checkpoints.
Where episodes come from, and what is logged, is the caller's (`tasks/train.py`).

One step: play the groups with the live weights, make rows, and cut them by length into
micro-batches of at most `micro_batch_rows`; then, `num_iterations` times, add up their gradients,
take one optimizer step, and shorten it if it moved the policy too far from the one that sampled
(`agent/trust.py`). The Trainer's own step is one such update.

The old log-probabilities are the trainer's own, kept from the first update's forward pass, not
those of the rollout: in float32 the two agree to 1e-4, but in bfloat16 single tokens differ by
0.1, and ratios would start away from 1. The reference of `kl_beta` is the base: the model with
its adapter switched off, or a frozen copy.

Source: `GRPOTrainer` of TRL 1.15. Departures: `training_step` loops over the micro-batches itself,
because TRL cuts a batch into a fixed number of equal parts and drops the remainder silently;
`tool_mask` carries env_mask x weight, so a weight multiplies the whole token loss, divergence
included, and the normaliser is that of the whole step (`agent/batching.py`); checkpoints are
renamed into place when they are whole.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from peft import LoraConfig
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from agent import checkpoints, parity
from agent.batching import MicroBatch, Rows, make_rows, micro_batches
from agent.errors import RolloutError
from agent.settings import TrainSettings
from agent.training_arguments import learning_rate_factor, training_arguments
from agent.trajectory import Trajectory
from agent.trust import TrustRegion, step_kl

Rollout = Callable[[PreTrainedModel, int], Sequence[Sequence[Trajectory]]]
"""(live model, step from 1) -> groups of episodes, one group a problem."""

OnStep = Callable[[int, dict[str, float]], None]
"""Called after each optimizer step with the trainer's own figures, before a checkpoint."""

State = Callable[[], dict[str, Any]]
"""What the caller wants back after a resume, as JSON types; saved in every checkpoint."""


_KL_EVERY = 3
"""One row in so many, in the order of length, tells how far a step went; all of them would cost
another tenth of the step."""


def _no_reward(**_: Any) -> list[float | None]:
    """TRL wants a reward source; rewards come with the episodes."""
    raise NotImplementedError("rewards come from the environment, with the trajectories")


class TreeGRPOTrainer(GRPOTrainer):
    """Trains a model on groups of episode trees.

    Args:
        model: the base, in the precision it is to be trained in; with `method: lora` it gets an
            adapter here.
        tokenizer: its tokenizer; a padding token is needed.
        settings: the section `train`.
        output_dir: folder of the checkpoints.
        rollout: plays a step's episodes.
        on_step: receives each step's figures.
        state: the caller's part of a checkpoint.
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
            # Problems are chosen by the rollout; a row is the number of a step.
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
                note=lambda name, value: self._note(f"step/{name}", value),
            )
        )
        self.beta = settings.kl_beta
        if self._reference is not None:
            self._reference.to(self.accelerator.device)
            # As TRL does with a reference of its own; used on a GPU only.
            add_fused_lm_head(self._reference, temperature=self.temperature)
        self._settings = settings
        self._rollout = rollout
        self._on_step = on_step
        self._extra_state = state
        self.current_gradient_accumulation_steps = 1  # micro-batches are cut here, not there
        self._folder = output_dir
        self._saving: Path | None = None
        self._resumed = False
        self._batches: list[dict[str, torch.Tensor]] = []
        self._learns = False
        self._compared: list[tuple[np.ndarray, np.ndarray]] = []
        # Weights in float32 agree to the last digits; anything shorter needs other limits.
        self._exact = all(p.dtype == torch.float32 for p in self.live_model.parameters())

    @property
    def live_model(self) -> PreTrainedModel:
        """The model that is being trained, adapter included."""
        model: Any = self.model
        return model

    def get_train_dataloader(self) -> DataLoader[Any]:
        """One item an update: its number from 0, so that a resume skips to the right one."""
        updates = range(self._settings.steps * self._settings.num_iterations)
        return self.accelerator.prepare(DataLoader(updates, batch_size=1, collate_fn=list))  # type: ignore[arg-type]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The schedule of `learning_rate_factor`."""
        factor = functools.partial(learning_rate_factor, settings=self._settings)
        self.lr_scheduler: Any = LambdaLR(optimizer or self.optimizer, factor)  # type: ignore[arg-type]
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def training_step(
        self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Play if it is the first update of a step; add up all gradients. Returns the loss."""
        step, update = divmod(inputs[0], self._settings.num_iterations)
        if update == 0:
            self._batches = self._prepare_inputs([step])
        started = time.perf_counter()
        model.train()
        self._compared = []
        loss = torch.zeros((), device=self.accelerator.device)
        for batch in self._batches:
            # A gradient of zeros would still let the optimizer's momentum move the weights.
            with torch.set_grad_enabled(self._learns), self.compute_loss_context_manager():
                part = self.compute_loss(model, batch)
            if self._learns:
                self.accelerator.backward(part)
            loss += part.detach()
        if update == 0:
            self._judge_parity(step + 1)
        else:
            self._note_ratios()
        self._step += 1
        self._note("seconds/gradient", time.perf_counter() - started)
        return loss

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Episodes of a step as micro-batches in TRL's names.

        Rows that can only add zeros (no weight; no advantage, where nothing else has a say) are
        left out of the forward passes, unless the step's number says that log-probabilities are
        compared; the normaliser counts all rows either way. Where all rows are such, the
        comparison is all there is: the step leaves the weights as they are. A resume does not
        enter here, or the resumed run would measure its steps on other tokens than one that was
        never killed.
        """
        step = generation_batch[0] + 1
        rows: Rows = self._generate_and_score_completions(generation_batch)
        everything = parity.due(step, self._settings.parity)
        learning = [
            row for row in rows.rows if row.has_gradient or (self.beta > 0 and row.weight > 0)
        ]
        self._learns = bool(learning)
        used = rows.rows if everything else learning
        pad = int(self._tokenizer.pad_token_id)
        self._note("rows/forwarded", len(used))
        batches = [
            self._tensors(batch, rows.normaliser)
            for batch in micro_batches(used, self._settings.micro_batch_rows, pad)
        ]
        if self.beta > 0:
            for batch in batches:
                batch["ref_per_token_logps"] = self._reference_logps(batch)
        return batches

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        """Play the step's groups with the live weights and make their rows.

        Raises:
            RolloutError: not one episode of the step is valid.
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
                f"step {step}: all {len(trees)} episodes are void, so there is nothing to learn "
                f"from; is the environment up? First reason: {reasons[0] if reasons else 'none'}"
            )
        rows = make_rows(groups, self._settings, np.random.default_rng([self.args.seed, step]))
        sampled = sum(
            len(t.sampled_ids) for tree in trees for f in tree.frames.values() for t in f.turns
        )
        for name, value in {
            "rows/all": len(rows.rows),
            "rows/void": rows.count("void"),
            "rows/cut": rows.count("cut"),
            "groups/flat": rows.flat_groups,
            "tokens/sampled": sampled,
            "tokens/per_second": sampled / max(seconds, 1e-9),
            "seconds/rollout": seconds,
        }.items():
            self._note(name, value)
        return rows

    def _tensors(self, batch: MicroBatch, normaliser: float) -> dict[str, torch.Tensor]:
        """A micro-batch as TRL's loss wants it: columns before `context` are the prompt."""
        device = self.accelerator.device
        at = batch.context
        ids = torch.from_numpy(batch.ids_B_T).to(device)
        attention = torch.from_numpy(batch.attention_B_T).to(device)
        weighted = batch.env_mask_B_T * batch.weights_B[:, None]
        return {
            "prompt_ids": ids[:, :at],
            "prompt_mask": attention[:, :at],
            "completion_ids": ids[:, at:],
            "completion_mask": attention[:, at:],
            "tool_mask": torch.from_numpy(weighted[:, at:]).to(device),
            "advantages": torch.from_numpy(batch.advantages_B).to(device),
            "num_items_in_batch": torch.tensor(normaliser, device=device),
            "sampling_per_token_logps": torch.from_numpy(batch.logprobs_B_T[:, at:]).to(device),
            "env_mask": torch.from_numpy(batch.env_mask_B_T[:, at:]).to(device),
        }

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        """TRL's loss; keeps both sides' log-probabilities of the sampled tokens."""
        self._sampled_B_T = inputs["env_mask"]
        # Without old log-probabilities TRL takes the present ones: ratios are exactly 1.
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
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
        """Those of the base, for roots and children alike, [B, T]."""
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

        TRL 1.15 has only a Triton kernel for this, so on a CPU it is done in plain torch, for
        the sampled tokens; the other columns are 0.
        """
        if input_ids.is_cuda:
            found = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, **kwargs
            )
        else:
            sampled = self._sampled_B_T
            # [B, T, vocabulary]: the column before each completion token predicts it.
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
        return found

    def _judge_parity(self, step: int) -> None:
        if not self._compared:
            return
        rollout, trainer = (np.concatenate(side) for side in zip(*self._compared, strict=True))
        found = parity.measure(rollout, trainer)
        self._note("parity/mean", found.mean)
        self._note("parity/max", found.max)
        # After a resume the first step that compares anything is judged as well.
        due = self._resumed or parity.due(step, self._settings.parity)
        if due or not math.isfinite(found.max):
            parity.check(found, self._settings.parity, exact=self._exact, step=step)
        self._resumed = False

    @staticmethod
    def _old_logps(batches: Sequence[dict[str, torch.Tensor]]) -> np.ndarray:
        """Of their sampled tokens, under the policy that sampled them."""
        old = [b["old_per_token_logps"][b["env_mask"]].float().cpu().numpy() for b in batches]
        return np.concatenate([np.zeros(0), *old])

    def _note_ratios(self) -> None:
        """How far from 1 the importance ratios of a later update are."""
        now = np.concatenate([np.zeros(0), *(trainer for _, trainer in self._compared)])
        if now.size:
            moved = np.expm1(now - self._old_logps(self._batches))
            self._note("ratio/deviation", float(np.abs(moved).mean()))

    def _step_kl(self) -> float:
        """How far the policy now is from the one that sampled, on a share of the step's tokens."""
        shares, place = [], 0
        for batch in self._batches:
            # The same rows, however they are cut into micro-batches.
            rows = slice(-place % _KL_EVERY, None, _KL_EVERY)
            place += len(batch["env_mask"])
            shares.append({name: part[rows] for name, part in batch.items() if part.dim()})
        shares = [share for share in shares if len(share["env_mask"])]
        after = [self._logps_of(self.model, s)[s["env_mask"]].float().cpu().numpy() for s in shares]
        return step_kl(self._old_logps(shares), np.concatenate([np.zeros(0), *after]))

    def _note(self, name: str, value: float) -> None:
        self._metrics["train"][name].append(float(value))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """TRL's log, then the caller's."""
        super().log(logs, start_time)
        if "loss" in logs:
            self._on_step(self.state.global_step // self._settings.num_iterations, dict(logs))

    def resume(self, checkpoint: Path | None) -> None:
        """Train to the last step, from a checkpoint if there is one."""
        self._resumed = checkpoint is not None
        self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._saving) if self._saving else super()._get_output_dir(trial)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Write the checkpoint aside, the caller's state last, and rename it into place."""
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
        """None: a checkpoint is no release."""

    def checkpoint_bytes(self) -> int:
        """Estimate of one checkpoint: trained weights, two moments of each, and small files."""
        trained = [p for p in self.live_model.parameters() if p.requires_grad]
        return sum(p.numel() * (p.element_size() + 8) for p in trained) + 20_000_000

    def save_result(self, folder: Path) -> None:
        """The adapter (or the whole model) and the tokenizer, as Hugging Face folders."""
        self.live_model.save_pretrained(str(folder))
        self._tokenizer.save_pretrained(str(folder))
