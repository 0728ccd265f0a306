"""The settings of the section `train` as TRL's arguments, and the learning rate's schedule.

Source: `GRPOConfig` of TRL 1.15. Its defaults are meant for other runs (bf16, checkpointing, a
learning rate of 1e-6), and a patched TRL changes them: so every option that has a say is said.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from trl.trainer.grpo_config import GRPOConfig

from agent.settings import TrainSettings


def training_arguments(settings: TrainSettings, output_dir: Path) -> GRPOConfig:
    """Every option of TRL and of the Trainer that has a say, none left to a default.

    Two of ours are not TRL's of the same name. `dr_grpo` is TRL's token loss of `dapo` with
    another normaliser (`agent/batching.py`): TRL's own would divide each micro-batch by its rows.
    TRL's `cispo` takes the highest importance weight itself, so 0.28 would clip every token.
    """
    trees = settings.problems_per_step * settings.group_size
    updates = settings.num_iterations
    cispo = settings.loss_type == "cispo"
    return GRPOConfig(
        output_dir=str(output_dir),
        # The loop: one generation, then `num_iterations` optimizer steps, all in agent/trainer.py.
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
        # The loss.
        loss_type="cispo" if cispo else "dapo",
        beta=0.0,  # set by agent/trainer.py: TRL would load its reference by name
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
        # Sampling: only the temperature matters here, for the trainer's log-probabilities.
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
        # The optimizer.
        optim="adamw_torch",
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",  # replaced: see learning_rate_factor
        warmup_steps=0,
        weight_decay=0.0,
        adam_beta1=0.9,
        adam_beta2=0.99,
        adam_epsilon=1e-8,
        max_grad_norm=settings.max_grad_norm,
        # Precision is the loaded model's own: autocast would part the trainer from the rollout.
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
        save_total_limit=None,  # pruned by agent/checkpoints.py, after the rename
        save_only_model=False,
        load_best_model_at_end=False,
        push_to_hub=False,
    )


def learning_rate_factor(update: int, settings: TrainSettings) -> float:
    """Share of the learning rate at an update from 0; never 0, so that no step is wasted.

    It is the same for all updates on one rollout.

    The Trainer's own warm-up begins at 0, which would also hide a lost adapter from the
    comparison of log-probabilities at step 2.
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
