"""Parts of the measurement of a graphics card, each a function of a `Bench`.

Neighbours: `models.py` (the models and inputs they measure), `__main__.py` (the command).
"""

from __future__ import annotations

import gc
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
from agent.settings import GenerationSettings, LogprobCheckSettings, TrainSettings
from agent.training import export, logprob_check
from agent.training.trainer import TreeGRPOTrainer
from benchmarks.gpu import models
from benchmarks.gpu.models import NF4, RAW, TWIN, WorkSize
from env.models import Message

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
    with torch.inference_mode():
        live = [export.top_logits(logits_T_V) for logits_T_V in model(input_ids=ids).logits]
        del model
        bench.fresh()
        twin = bench.load(TWIN)(input_ids=ids).logits
    bench.note("build", "twin", logit_error=max(map(export.relative_error, live, twin)))


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
            try:
                step = _last_step(bench, tokens, checkpointing)
            except torch.OutOfMemoryError:
                bench.note("train", case, skipped="out of memory")
                continue
            bench.note("train", case, **{name: step.get(key) for name, key in STEPS.items()})


def _last_step(bench: Bench, tokens: int, checkpointing: bool) -> Mapping[str, float]:
    """Figures of the second of two steps, with a float32 adapter; the first compiles kernels."""
    steps: list[Mapping[str, float]] = []
    wide = LogprobCheckSettings(max_abs=99, mean_abs=99, p99_abs=99)  # measured, not judged
    with tempfile.TemporaryDirectory() as folder:
        TreeGRPOTrainer(
            bench.load(NF4),
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
                micro_batch_tokens=tokens,
                gradient_checkpointing=checkpointing,
            ),
            output_dir=Path(folder),
            rollout=models.random_trees(bench.size),
            on_step=lambda _, logs: steps.append(logs),
            state=dict,
        ).resume(None)
    return steps[-1]


PARTS: dict[str, Callable[[Bench], None]] = {part.__name__: part for part in (build, decode, train)}
