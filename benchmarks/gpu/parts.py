"""Parts of the measurement of a graphics card, each a function of a `Bench`.

Neighbours: `models.py` (the models and inputs they measure), `__main__.py` (the command).
"""

from __future__ import annotations

import gc
import importlib.util
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from agent.errors import PolicyError
from agent.policies.base import TurnRequest
from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.policies.model_files import compute_dtype
from agent.policies.unsloth_loader import load_with_unsloth
from agent.settings import GenerationSettings, LogprobCheckSettings, LoraSettings, TrainSettings
from agent.training import logprob_check
from agent.training.loss_scale import first_scale
from agent.training.trainer import TreeGRPOTrainer  # before Unsloth, which replaces its base class
from benchmarks.gpu import models
from benchmarks.gpu.models import ADAPTER, NF4, RAW, TWIN, WorkSize
from env.models import Message

TOKENS, ADVANTAGE = 3e4, 0.1
"""Divisor and factor of the loss in `float16`: tokens of a step of 64 trees, a usual advantage."""
STEPS = {
    "gradient_s": "train/gradient_seconds",
    "mismatch_mean": "train/logprob_mismatch_mean",
    "mismatch_max": "train/logprob_mismatch_max",
    "step_kl": "train/step_kl",
}
"""Figures of a training step, by the trainer's names."""


@dataclass
class Bench:
    """A device under measurement, and where its figures go."""

    size: WorkSize
    device: str
    work: Path
    out: Path
    until: float
    """Time of `time.monotonic` at which a part starts no further case."""

    def note(self, part: str, case: str, **figures: Any) -> None:
        """Print a case's figures, with the peak of the card's memory since `fresh`."""
        if self.device == "cuda":
            figures["peak_gb"] = torch.cuda.max_memory_allocated() / 2**30
        record = {"part": part, "case": case, **figures}
        print(json.dumps(record), flush=True)
        with (self.out / "figures.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def fresh(self) -> None:
        """Free what no variable holds, and measure the peak again."""
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def timed(self, work: Callable[[], Any]) -> tuple[Any, float]:
        """Result and seconds of a piece of work, until the card has finished it."""
        started = time.perf_counter()
        result = work()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return result, time.perf_counter() - started

    def load(self, folder: str, dtype: torch.dtype | None = None) -> Any:
        """A model that `build` wrote."""
        model, _ = load_model(self.work / folder, device=self.device, dtype=dtype)
        return model

    def tokenizer(self) -> Any:
        """Their tokenizer."""
        return AutoTokenizer.from_pretrained(self.work / RAW)


def build(bench: Bench) -> None:
    """Write the raw model, its NF4 form and the twin, and compare the logits of the last two."""
    parameters = models.write_raw(bench.work, bench.size, bench.device)
    bench.fresh()
    _, seconds = bench.timed(partial(models.write_base, bench.work, bench.device))
    model, ids = bench.load(NF4), models.random_ids((2, 64), bench.device)
    stored = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    bench.note("build", NF4, parameters=parameters, seconds=seconds, weights_gb=stored / 2**30)
    live = models.logits_of(model, ids)
    del model
    bench.fresh()
    error = models.largest_error(live, models.logits_of(bench.load(TWIN), ids))
    bench.note("build", "twin", logit_error=error)


def decode(bench: Bench) -> None:
    """Tokens a second of the own loop, and its log-probabilities against a whole pass."""
    size = bench.size
    for name, folder in (("nf4", NF4), ("twin", TWIN)):
        model, tokenizer = bench.load(folder), bench.tokenizer()
        for frames in size.frames:
            case = f"{name}, {frames} frames"
            if time.monotonic() > bench.until:
                bench.note("decode", case, skipped="no time left")
                continue
            bench.fresh()
            policy = TransformersPolicy(
                model,
                tokenizer,
                GenerationSettings(
                    max_turn_tokens=size.turn_tokens,
                    max_frame_tokens=size.frame_tokens,
                    batch_frames=frames,
                    cache_tokens=65_536,
                ),
            )
            try:
                rounds = [
                    bench.timed(partial(policy.act, _requests(frames, size, first=first)))
                    for first in (True, False)
                ]
            except PolicyError:
                bench.note("decode", case, skipped="out of memory")
                continue
            (one, seconds), (two, again) = rounds
            sampled = sum(len(reply.sampled_ids) for reply in one)
            found = logprob_check.measure(*_both_log_probs(model, one[:4], two[:4]))
            bench.note(
                "decode",
                case,
                tokens_per_s=sampled / seconds,
                second_turn_s=again,
                parity_mean=found.mean,
                parity_p99=found.p99,
                parity_max=found.max,
            )
        del model


def _requests(frames: int, size: WorkSize, first: bool) -> list[TurnRequest]:
    text = "paper " * (size.frame_tokens // 8)
    return [
        TurnRequest((i, 0), [Message(role="user", content=text)], 0, "rlm", first, seed=i)
        for i in range(frames)
    ]


def _both_log_probs(model: Any, one: Sequence[Any], two: Sequence[Any]) -> tuple[Any, Any]:
    """Log-probabilities of the second turns: by the loop, and by a pass over whole frames."""
    loop: list[float] = []
    whole: list[float] = []
    for first, second in zip(one, two, strict=True):
        ids = first.prompt_ids + first.sampled_ids + second.prompt_ids + second.sampled_ids
        loop += second.logprobs
        whole += models.log_probs(model, ids, len(second.sampled_ids))
    return np.asarray(loop, np.float32), np.asarray(whole, np.float32)


def train(bench: Bench) -> None:
    """Seconds and peak memory of a step, by the tokens of a micro-batch and by checkpointing."""
    for checkpointing in (True, False):
        for tokens in bench.size.micro_batch_tokens:
            case = f"{tokens} tokens, checkpointing {'on' if checkpointing else 'off'}"
            if time.monotonic() > bench.until:
                bench.note("train", case, skipped="no time left")
                continue
            bench.fresh()
            steps: list[Mapping[str, float]] = []
            with tempfile.TemporaryDirectory() as folder:
                try:
                    trainer = make_trainer(
                        bench,
                        bench.load(NF4),
                        Path(folder),
                        models.random_trees(bench.size),
                        steps.append,
                        micro_batch_tokens=tokens,
                        gradient_checkpointing=checkpointing,
                    )
                    trainer.resume(None)
                except torch.OutOfMemoryError:
                    bench.note("train", case, skipped="out of memory")
                    continue
            # The first step compiles kernels.
            bench.note("train", case, **{name: steps[-1].get(key) for name, key in STEPS.items()})
            del trainer


def make_trainer(
    bench: Bench,
    model: Any,
    folder: Path,
    rollout: Callable[[Any, int], Any],
    on_step: Callable[[Mapping[str, float]], None],
    **settings: Any,
) -> TreeGRPOTrainer:
    """A trainer of two steps, with a float32 adapter; a model may have its adapter already."""
    wide = LogprobCheckSettings(max_abs=99, mean_abs=99, p99_abs=99)  # measured, not judged
    return TreeGRPOTrainer(
        model,
        bench.tokenizer(),
        TrainSettings(
            steps=2,
            processes=1,
            problems_per_step=2,
            group_size=4,
            learning_rate=1e-5,
            warmup_steps=0,
            min_group_std=0.0,
            save_every=99,
            logprob_check=wide,
            generation=GenerationSettings(max_frame_tokens=bench.size.frame_tokens),
            **settings,
        ),
        output_dir=folder,
        rollout=rollout,
        on_step=lambda _, logs: on_step(logs),
        state=dict,
    )


def float16(bench: Bench) -> None:
    """Direction of the gradient in float16, with and without a scale of the loss."""
    reference = compute_dtype(bench.device)
    if reference == torch.float16:
        reference = torch.float32
    scale = first_scale(TOKENS)
    wanted = None
    for dtype, by in ((reference, 1.0), (torch.float16, 1.0), (torch.float16, scale)):
        bench.fresh()
        model = models.with_adapter(bench.load(TWIN, dtype))
        ids = models.random_ids((1, bench.size.frame_tokens // 2), bench.device)
        found = loss_gradient(model, ids, by)
        wanted = found if wanted is None else wanted
        bench.note(
            "float16",
            f"{str(dtype).removeprefix('torch.')}, scale {by:g}",
            cosine=float(torch.nn.functional.cosine_similarity(found, wanted, 0)),
            zeros=float((found == 0).float().mean()),
            finite=bool(found.isfinite().all()),
        )
        del model


def loss_gradient(model: Any, ids_B_T: torch.Tensor, scale: float) -> torch.Tensor:
    """Gradient of the loss of sampled tokens in a step, by way of a scaled loss."""
    logits = model(input_ids=ids_B_T).logits[:, :-1].float()
    logprobs = torch.log_softmax(logits, -1).gather(-1, ids_B_T[:, 1:, None])
    (logprobs.sum() * (scale * ADVANTAGE / TOKENS)).backward()
    return flat_gradient(model) / scale


def flat_gradient(model: Any) -> torch.Tensor:
    """Gradients of all trained weights as one vector in float32."""
    return torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])


def export(bench: Bench) -> None:
    """Errors of three ways to merge an adapter, relative to the live 4-bit model with it."""
    ids = models.random_ids((2, 64), bench.device)
    live_model = models.with_adapter(bench.load(NF4)).eval()
    live_model.save_pretrained(bench.work / ADAPTER)
    live = models.logits_of(live_model, ids)
    with live_model.disable_adapter():
        base = models.logits_of(live_model, ids)
    bench.note("export", "effect of the adapter", logit_error=models.largest_error(live, base))
    del live_model
    for folder, case in (
        (TWIN, "merge into the twin"),
        (NF4, "merge into 4 bit"),
        (RAW, "merge into the unquantised model"),
    ):
        bench.fresh()
        model, seconds = bench.timed(
            partial(models.merged, bench.work / folder, bench.work / ADAPTER, bench.device)
        )
        error = models.largest_error(live, models.logits_of(model, ids))
        bench.note("export", case, logit_error=error, seconds=seconds)
        del model


def unsloth(bench: Bench) -> None:
    """Gradient, seconds and memory of Unsloth against the plain model, with one adapter."""
    model = models.with_adapter(bench.load(NF4))
    trees = models.random_trees(bench.size)(model, 1)
    plain = adapted_step(bench, "transformers", model, trees, None)
    del model
    if bench.device == "cpu" or importlib.util.find_spec("unsloth") is None:
        reason = "needs a card" if bench.device == "cpu" else "not installed: make setup-cuda"
        bench.note("unsloth", "unsloth", skipped=reason)
        return
    adapted_step(bench, "unsloth", unsloth_adapted(bench), trees, plain)


def adapted_step(
    bench: Bench, case: str, model: Any, trees: Any, plain: torch.Tensor | None
) -> torch.Tensor:
    """Measure the gradient of a model that has its adapter; returns it.

    Args:
        plain: the gradient to compare with.
    """
    bench.fresh()
    models.randomise(model)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(
            bench,
            model,
            Path(folder),
            lambda *_: trees,
            lambda _: None,
            micro_batch_tokens=bench.size.micro_batch_tokens[0],
            gradient_checkpointing=case == "transformers",  # Unsloth has its own
        )
        for _ in range(2):  # the first one compiles kernels
            trainer.live_model.zero_grad()
            step = partial(trainer.training_step, trainer.live_model, [0])
            _, seconds = bench.timed(step)
    found = flat_gradient(trainer.live_model)
    cosine = torch.nn.functional.cosine_similarity(found, found if plain is None else plain, 0)
    bench.note("unsloth", case, step_s=seconds, cosine=float(cosine))
    return found


def unsloth_adapted(bench: Bench) -> Any:
    """The 4-bit model with Unsloth's adapter and kernels."""
    model, _ = load_with_unsloth(
        bench.work / NF4, LoraSettings(), max_seq_length=2 * bench.size.frame_tokens, seed=0
    )
    return model


PARTS: dict[str, Callable[[Bench], None]] = {
    part.__name__: part for part in (build, decode, train, float16, export, unsloth)
}
