"""Supervised training of a LoRA adapter on rows with labels, by TRL's SFTTrainer.

A thin subclass. Rows are cut into batches of at most `micro_batch_tokens`, and a step has as many
of them as `batch_tokens` holds. No row is cut: the rollout that made it kept the limits.
Neighbours: `sft_rows.py` makes the rows, `tasks/training/demonstrate.py` calls it.

Source: `SFTTrainer` of TRL 1.15. Departures:

- TRL computes each loss with a Triton kernel, which no option avoids. On a CPU, plain torch does
  (`token_logprobs.py`), which reads a beginning that rows of a batch share once.
- TRL casts the adapter of a 4-bit base to bfloat16, which rounds small steps away. It is float32.
- Gradients of a float16 model are made with a scaled loss (`loss_scale.py`). TRL has none.
- Checkpoints are renamed into place when they are complete (`saving.py`).
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from pickle import UnpicklingError
from random import Random
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainerState
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from agent.decoding.prefix_tree import by_length, packs
from agent.demonstrations.sft_rows import IGNORED, DemonstrationRow
from agent.errors import CheckpointError, PolicyError
from agent.models.model_files import gradient_fits, this_device
from agent.settings import SftSettings, TrainSettings
from agent.training import token_logprobs, trained_weights
from agent.training.checkpoints import Resume
from agent.training.loss_scale import first_scale, needs_scale, scaled_backward
from agent.training.saving import WholeCheckpoints
from agent.training.trl_config import shared_arguments

if SFTTrainer.__name__ != "SFTTrainer":
    # Its subclass would inherit another loss.
    raise ImportError(
        f"TRL's SFTTrainer was replaced by {SFTTrainer.__module__}.{SFTTrainer.__name__} before "
        "this import. Import agent.demonstrations.supervised first, and then unsloth."
    )

OnSupervisedStep = Callable[[int, dict[str, float]], None]
"""Called with the optimizer step and the trainer's figures, `loss` among them."""

SAVE_EVERY = 20
"""Steps between checkpoints, which are minutes on a small card."""
_WARMUP = 0.05
"""Share of the steps in which the learning rate rises."""


class TokenBatches:
    """Batches of rows that begin alike, or on a GPU are of similar length; shuffled each epoch.

    Such a batch holds frames of one kind, such as roots alone. A model that sees no root for some
    steps forgets how to be one. So a step takes its batches from all over their order.

    A row that is longer than a batch is one of its own. A beginning that rows share counts once; on
    a GPU, padding counts.

    Args:
        rows: conversations with labels.
        settings: seed of the order, and tokens of an optimizer step.
        train: tokens of a forward pass; a step may need fewer than a pass could hold.
    """

    def __init__(
        self, rows: Sequence[DemonstrationRow], settings: SftSettings, train: TrainSettings
    ) -> None:
        most = min(settings.batch_tokens, train.micro_batch_tokens)
        self.together = settings.batch_tokens // most
        """Batches of an optimizer step."""
        fused = token_logprobs.fused(torch.device(this_device()))
        ids = [row["input_ids"] for row in rows]
        self._batches = list((by_length if fused else packs)(ids, most))
        self._rng = Random(settings.seed)

    def __iter__(self) -> Iterator[list[int]]:
        """Indices of the rows of each batch."""
        steps = -(-len(self._batches) // self.together)
        # A stretch of the order for each place in a step; the last stretch may be shorter.
        stretches = [
            self._rng.sample(stretch, len(stretch))
            for start in range(0, len(self._batches), steps)
            for stretch in [self._batches[start : start + steps]]
        ]
        for step in range(steps):
            yield from (stretch[step] for stretch in stretches if step < len(stretch))

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._batches)


class AdapterTrainer(WholeCheckpoints, SFTTrainer):
    """Trainer of an adapter on rows of token ids.

    Args:
        model: base in the precision of training; it gets a new adapter, unless it has one.
        tokenizer: its tokenizer, with a padding token.
        rows: conversations with labels.
        settings: the section `warmstart.sft`.
        train: adapter, micro-batches and checkpointing of the section `train`.
        on_step: receives each step's figures.
        start: folder of the checkpoints, and the one to go on from.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        rows: Sequence[DemonstrationRow],
        settings: SftSettings,
        train: TrainSettings,
        *,
        on_step: OnSupervisedStep,
        start: Resume,
    ) -> None:
        self._on_step, self._start = on_step, start
        self.folder, self.kept = start.folder, 1
        self.extra_state = lambda: {"fingerprint": dict(start.fingerprint)}
        self._batches = TokenBatches(rows, settings, train)
        adapter = trained_weights.new_adapter(model, train)
        originals = trained_weights.own_adapter(model)
        arguments = supervised_arguments(settings, train, start.folder, self._batches.together)
        if model.is_gradient_checkpointing:
            arguments.gradient_checkpointing = False  # the Trainer would replace what is there
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_list([dict(row) for row in rows]),
            processing_class=tokenizer,
            peft_config=adapter,
        )
        self.remove_callback(PrinterCallback)
        adapted: Any = self.model
        trained_weights.restore_float32(adapted, originals)
        self._needs_scale = needs_scale(adapted)

    def resume(self) -> None:
        """Train to the last step, from the checkpoint if there is one."""
        if checkpoint := self._start.checkpoint:
            state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
            for _ in range(int(state.epoch or 0)):
                list(self._batches)  # the order of the next epoch depends on those before
        try:
            self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except (EOFError, OSError, UnpicklingError) as error:
            if not checkpoint or isinstance(error, CheckpointError):
                raise
            raise CheckpointError(
                f"{checkpoint} can't be read ({error}). Delete {self.folder} to start again."
            ) from error

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Micro-batches; accelerate would deal them to ranks."""
        rows: Any = self.train_dataset
        return DataLoader(rows, batch_sampler=self._batches, collate_fn=self.data_collator)

    def training_step(
        self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Add the gradients of a micro-batch; returns its loss."""
        model.train()
        inputs = self._prepare_inputs(inputs)

        def backward(scale: float) -> torch.Tensor:
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
            self.accelerator.backward(scale * loss)
            return loss.detach()

        if not self._needs_scale:
            return backward(1.0)
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        before = [weight.grad for weight in weights]
        model.zero_grad()
        loss = scaled_backward(backward, lambda: weights, first_scale(float(num_items_in_batch)))
        for weight, gradient in zip(weights, before, strict=True):
            if gradient is not None:
                weight.grad += gradient
        return loss

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Cross-entropy of the labels, divided by the number of labels of the whole step."""
        if token_logprobs.fused(inputs["input_ids"].device):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        counted_B_T = inputs["labels"] != IGNORED
        counted_B_T[:, 0] = False
        logprobs_K_V, places_N = token_logprobs.predictions(
            model, inputs["input_ids"], inputs["attention_mask"], counted_B_T
        )
        loss = -logprobs_K_V[places_N, inputs["labels"][counted_B_T]].sum()
        return loss / (len(places_N) if num_items_in_batch is None else num_items_in_batch)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as TRL does, then call `on_step`."""
        super().log(logs, start_time)
        if "loss" in logs:
            self._on_step(self.state.global_step, dict(logs))


def supervised_arguments(
    settings: SftSettings, train: TrainSettings, output_dir: Path, batches_of_step: int = 1
) -> SFTConfig:
    """Options of TRL and of the Trainer, as in `trl_config.py`."""
    arguments = SFTConfig(
        **shared_arguments(train, output_dir, settings.seed),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=1,  # AdapterTrainer.get_train_dataloader makes the batches
        gradient_accumulation_steps=batches_of_step,
        average_tokens_across_devices=False,
        # Rows are token ids with labels.
        max_length=None,
        completion_only_loss=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        # Optimizer.
        learning_rate=settings.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=_WARMUP,
        adam_beta2=0.95,
        max_grad_norm=1.0,
        # Logs, checkpoints.
        logging_steps=1,
        report_to=[],
        save_steps=SAVE_EVERY,
    )
    # With more GPUs, the Trainer would split each batch with nn.DataParallel.
    arguments._n_gpu = 1
    return arguments


def count_steps(rows: Sequence[DemonstrationRow], sft: SftSettings, train: TrainSettings) -> int:
    """Optimizer steps of a training."""
    batches = TokenBatches(rows, sft, train)
    return sft.epochs * -(-len(batches) // batches.together)


def train_adapter(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[DemonstrationRow],
    settings: SftSettings,
    train: TrainSettings,
    *,
    out: Path,
    on_step: OnSupervisedStep,
    start: Resume,
) -> None:
    """Train an adapter of a base model and save it in a folder.

    Args:
        model, tokenizer, rows, settings, train, on_step, start: as in `AdapterTrainer`.
        out: folder of the adapter.

    Raises:
        CheckpointError: a checkpoint can't be written.
        PolicyError: the training broke the weights.
    """
    trainer = AdapterTrainer(model, tokenizer, rows, settings, train, on_step=on_step, start=start)
    with gradient_fits(train.micro_batch_tokens):
        trainer.resume()
    adapted: Any = trainer.model
    if name := trained_weights.not_finite(adapted):
        raise PolicyError(
            f"the weight {name} of the adapter is not finite after the training. Lower "
            "warmstart.sft.learning_rate."
        )
    adapted.save_pretrained(str(out))
