"""TRL's arguments from the section `train`, and the schedule of the learning rate.

Source: `GRPOConfig` of TRL 1.15. Its defaults are for other runs (bf16, gradient checkpointing, a
learning rate of 1e-6) and differ between versions, so every effective option is set.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from trl.trainer.grpo_config import GRPOConfig

from agent.settings import TrainSettings


def training_arguments(settings: TrainSettings, output_dir: Path) -> GRPOConfig:
    """All effective options of TRL and of the Trainer; none is left to its default.

    Two of our losses differ from TRL's of the same name. `dr_grpo` is TRL's token loss of `dapo`
    with another normaliser (`batching.py`), because TRL divides each micro-batch by its rows. For
    `cispo`, TRL's `epsilon_high` is the largest importance weight, so 1 is added to ours.
    """
    trees = settings.problems_per_step * settings.group_size
    updates = settings.num_iterations
    cispo = settings.loss_type == "cispo"
    arguments = GRPOConfig(
        output_dir=str(output_dir),
        # Loop: trainer.py does a generation and then `num_iterations` optimizer steps.
        max_steps=settings.steps * updates,
        per_device_train_batch_size=trees,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        generation_batch_size=None,
        num_iterations=1,
        num_generations=settings.group_size,
        num_generations_eval=None,
        shuffle_dataset=False,
        remove_unused_columns=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        # Loss.
        loss_type="cispo" if cispo else "dapo",
        beta=0.0,  # trainer.py sets it, because TRL would load a reference by name
        epsilon=settings.epsilon_low,
        epsilon_high=settings.epsilon_high + (1.0 if cispo else 0.0),
        delta=None,
        importance_sampling_level="token",
        scale_rewards=settings.scale_rewards,
        multi_objective_aggregation="sum_then_normalize",
        reward_weights=None,
        mask_truncated_completions=False,
        top_entropy_quantile=1.0,
        entropy_coef=0.0,
        use_adaptive_entropy=False,
        off_policy_mask_threshold=None,
        use_bias_correction_kl=False,
        sync_ref_model=False,
        router_aux_loss_coef=None,
        disable_dropout=True,
        cast_lm_head_to_fp32=False,
        # Sampling: only the temperature has an effect, on the trainer's log-probabilities.
        temperature=settings.generation.temperature,
        top_p=1.0,
        top_k=0,
        min_p=None,
        repetition_penalty=1.0,
        max_completion_length=settings.generation.max_frame_tokens,
        generation_kwargs=None,
        chat_template_kwargs=None,
        cache_implementation=None,
        pad_to_multiple_of=None,
        max_tool_calling_iterations=None,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        use_transformers_continuous_batching=False,
        transformers_continuous_batching_config=None,
        # Optimizer.
        optim="adamw_torch",
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",  # replaced: see learning_rate_factor
        warmup_steps=0,
        weight_decay=0.0,
        adam_beta1=0.9,
        adam_beta2=0.99,
        adam_epsilon=1e-8,
        max_grad_norm=settings.max_grad_norm,
        # Precision of the loaded model: with autocast, trainer and rollout would differ.
        bf16=False,
        fp16=False,
        tf32=False if torch.cuda.is_available() else None,
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=settings.gradient_checkpointing,
        use_liger_kernel=False,
        torch_compile=False,
        auto_find_batch_size=False,
        model_init_kwargs=None,
        trust_remote_code=False,
        # Seeds, logs, checkpoints.
        seed=settings.seed,
        data_seed=settings.seed,
        logging_strategy="steps",
        logging_steps=updates,
        logging_first_step=False,
        logging_nan_inf_filter=False,
        log_completions=False,
        log_multimodal=False,
        num_completions_to_print=None,
        log_unique_prompts=False,
        log_completions_hub_repo=None,
        report_to=settings.report_to,
        disable_tqdm=True,
        eval_strategy="no",
        save_strategy="steps",
        save_steps=settings.save_every * updates,
        save_total_limit=None,  # pruned by checkpoints.py, after the rename
        save_only_model=False,
        load_best_model_at_end=False,
        push_to_hub=False,
        # Several processes: every weight has a gradient, and no buffer changes.
        ddp_find_unused_parameters=False,
        ddp_broadcast_buffers=False,
    )
    # With more GPUs, the Trainer would split each batch with nn.DataParallel.
    arguments._n_gpu = 1
    return arguments


def learning_rate_factor(update: int, settings: TrainSettings) -> float:
    """Factor of the learning rate at an update (from 0), in (0, 1].

    All updates on one rollout have the same factor. The Trainer's own warm-up starts at 0, which
    wastes a step and hides a lost adapter from the check of log-probabilities at step 2.
    """
    step = update // settings.num_iterations
    warm = min(1.0, (step + 1) / (settings.warmup_steps + 1))
    done = step / settings.steps
    decay = {
        "constant": 1.0,
        "linear": 1.0 - done,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * done)),
    }[settings.schedule]
    return warm * decay
