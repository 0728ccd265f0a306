"""Warm start: supervised training of the nano base on lessons, until it reads.

Lessons start with drills. Then they are demonstrations with a drill from time to time. Their probe
ends the warm start, not a timer. The seed determines the result. A warm start is short, so an
interrupted one starts again from the beginning.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from agent.nano.examples import ExampleBatch
from agent.nano.lessons import ReadingLessons
from agent.nano.model import build_model
from agent.nano.sizes import NanoSettings
from agent.nano.tokenizer import build_tokenizer

logger = logging.getLogger(__name__)

OnNanoStep = Callable[[int, Mapping[str, float]], None]
"""Called after each step with its metrics, those of the last probe included."""


@dataclass(frozen=True)
class Taught:
    """Result of a warm start."""

    model: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerFast
    metrics: dict[str, float]


def build(settings: NanoSettings, lessons: ReadingLessons) -> Taught:
    """The wired model before any training."""
    tokenizer = build_tokenizer(lessons.corpus(), settings.model.vocab, list(lessons.whole))
    model = build_model(settings.model, tokenizer, settings.seed, lessons.whole)
    return Taught(model, tokenizer, {})


def teach(settings: NanoSettings, lessons: ReadingLessons, on_step: OnNanoStep) -> Taught:
    """Build the model and train it.

    Args:
        settings: sizes, rates and thresholds of the probe.
        lessons: what it learns.
        on_step: receives the progress.
    """
    started = time.process_time()
    base = build(settings, lessons)
    model, tokenizer = base.model, base.tokenizer
    feed = lessons.feed(tokenizer)
    embedding = model.model.embed_tokens.weight
    others = [weight for weight in model.parameters() if weight is not embedding]
    # The embedding has a share of the learning rate.
    shares = [
        {"params": [embedding], "share": settings.embedding_rate},
        {"params": others, "share": 1.0},
    ]
    optimizer = torch.optim.AdamW(shares, betas=(0.9, 0.98), weight_decay=0.01)
    vocabulary = tokenizer.get_vocab()
    unseen = [vocabulary[name] for name in lessons.unseen]
    model.train()
    metrics: dict[str, float] = {}
    for step in range(1, settings.steps + 1):
        loss = weighted_loss(model, next(feed), unseen)
        rate = settings.learning_rate * _rate(settings, step)
        for group in optimizer.param_groups:
            group["lr"] = group["share"] * rate
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        metrics["warmstart/loss"] = loss.item()
        probed = step % settings.probe_every == 0 or step == settings.steps
        if probed:
            metrics |= {
                f"warmstart/probe_{name}": share for name, share in lessons.probe(model, tokenizer)
            }
            metrics["warmstart/cpu_s"] = time.process_time() - started
            logger.info("step %d: %s", step, _readable(metrics))
        on_step(step, metrics)
        if probed and step >= settings.min_steps and passed(settings, metrics):
            break
    model.eval()
    return Taught(model, tokenizer, {**metrics, "warmstart/steps": float(step)})


def passed(settings: NanoSettings, metrics: Mapping[str, float]) -> bool:
    """Whether the last probe reached its thresholds for root and child."""
    return all(
        metrics[f"warmstart/probe_{kind}_{name}"] >= mark
        for name, mark in (("greedy", settings.probe_greedy), ("sampled", settings.probe_sampled))
        for kind in ("root", "child")
    )


def weighted_loss(
    model: PreTrainedModel, batch: ExampleBatch, unseen: Sequence[int] = ()
) -> torch.Tensor:
    """Mean cross-entropy of the next tokens, weighted by token.

    Args:
        model: model in training mode.
        batch: sequences and weights.
        unseen: tokens that no sequence holds. Left out of the softmax, they keep their embeddings.
    """
    hidden = model.model(input_ids=batch.ids).last_hidden_state[:, :-1]  # [B, T - 1, hidden]
    weights = batch.weights[:, 1:]
    counted = weights > 0
    # Padding is on the right, where causal attention does not see it, and its weight is 0.
    logits = model.lm_head(hidden[counted])  # [N, V]
    if unseen:
        logits[:, list(unseen)] = -torch.inf
    losses = functional.cross_entropy(logits, batch.ids[:, 1:][counted], reduction="none")
    return (losses * weights[counted]).sum() / weights.sum()


def save(taught: Taught, folder: Path) -> None:
    """Write a folder that `from_pretrained` loads."""
    taught.model.save_pretrained(folder)
    taught.tokenizer.save_pretrained(folder)


def _rate(settings: NanoSettings, step: int) -> float:
    """Factor of the learning rate: linear warm-up, then linear decay to 0.1."""
    if step <= settings.warmup_steps:
        return step / settings.warmup_steps
    done = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    return 1.0 - 0.9 * done


def _readable(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name.split('/')[-1]} {value:.3f}" for name, value in metrics.items())
