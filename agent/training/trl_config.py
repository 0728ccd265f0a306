"""TRL's arguments from the section `train`, and the schedule of the learning rate.

Source: `GRPOConfig` of TRL 1.15. Many of its defaults are for other runs (bf16, gradient
checkpointing, a learning rate of 1e-6). What isn't set here has the default of the versions that
constraints.txt pins.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from trl.trainer.grpo_config import GRPOConfig

from agent.settings import TrainSettings


def shared_arguments(train: TrainSettings, output_dir: Path, seed: int) -> dict[str, Any]:
    """Options of the Trainer that GRPO and the supervised training share."""
    return {
        "output_dir": str(output_dir),
        "dataloader_pin_memory": False,
        "optim": "adamw_torch",
        "weight_decay": 0.0,
        "adam_beta1": 0.9,
        # Precision of the loaded model: with autocast, trainer and rollout would differ.
        "bf16": False,
        "fp16": False,
        "use_cpu": not torch.cuda.is_available(),
        "gradient_checkpointing": train.gradient_checkpointing,
        "seed": seed,
        "data_seed": seed,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
    }


def training_arguments(
    settings: TrainSettings, output_dir: Path, temperature: float = 1.0
) -> GRPOConfig:
    """Options of TRL and of the Trainer that differ from their defaults, or define the training.

    TRL's other losses average or weigh whole rows, but the rows of a tree have unequal weights.
    """
    trees = settings.problems_per_step * settings.group_size
    arguments = GRPOConfig(
        **shared_arguments(settings, output_dir, settings.seed),
        # Loop: trainer.py plays and takes one optimizer step.
        max_steps=settings.steps,
        per_device_train_batch_size=trees,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_iterations=1,
        num_generations=settings.group_size,
        shuffle_dataset=False,
        remove_unused_columns=False,
        # Loss.
        loss_type="dapo",
        scale_rewards=settings.scale_rewards,
        disable_dropout=True,
        # Sampling: only the temperature has an effect, on the trainer's log-probabilities.
        temperature=temperature,
        # Optimizer.
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",  # replaced: see learning_rate_factor
        warmup_steps=0,
        adam_beta2=0.99,
        adam_epsilon=1e-8,
        max_grad_norm=0.1,
        tf32=False if torch.cuda.is_available() else None,
        # Logs, checkpoints.
        logging_steps=1,
        log_multimodal=False,
        report_to=settings.report_to,
        save_steps=settings.save_every,
        # Several processes: every weight has a gradient, and no buffer changes.
        ddp_find_unused_parameters=False,
        ddp_broadcast_buffers=False,
    )
    # With more GPUs, the Trainer would split each batch with nn.DataParallel.
    arguments._n_gpu = 1
    return arguments


def learning_rate_factor(step: int, settings: TrainSettings) -> float:
    """Factor of the learning rate at a step (from 0), in (0, 1].

    The Trainer's own warm-up starts at 0, which wastes a step and hides a lost adapter from the
    check of log-probabilities at step 2.
    """
    return min(1.0, (step + 1) / (settings.warmup_steps + 1)) * (1.0 - step / settings.steps)
