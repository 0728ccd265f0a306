"""Teaches the nano base by demonstrations, until it binds names rightly.

Plain supervised steps on the mixture of `demonstrations.py`, with copying drills first and then
now and again; it ends by the probe of `probe.py`, not by a timer. Deterministic by the seed.
It is short, so an interrupted one starts anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from agent.nano import drills
from agent.nano.demonstrations import Conversation, Tree, demonstrate
from agent.nano.examples import Batch, Encoder, Example, batches, collate, noisy
from agent.nano.model import build_model
from agent.nano.probe import ProbeResult, probe
from agent.nano.settings import NanoSettings
from agent.nano.slips import with_slip
from agent.nano.tokenizer import USER, build_tokenizer, render, syllable_ids
from agent.nano.wording import with_words
from env.problems.schema import Problem

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

logger = logging.getLogger(__name__)

OnStep = Callable[[int, Mapping[str, float]], None]
"""Called after each step with its metrics, and with a probe's when there was one."""

_VOCABULARY_TREES = 300
"""Trees whose texts the tokenizer is trained on."""
_CHILDREN_KEPT = 2
"""Children of one tree that are learnt from; more of them differ in nothing but their choices."""


@dataclass(frozen=True)
class Taught:
    """The outcome of a warm start."""

    model: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerFast
    metrics: dict[str, float]


def untaught(settings: NanoSettings, problems: Sequence[Problem]) -> Taught:
    """The model before any teaching: wired, and of no use."""
    trees = list(demonstrate(problems, _VOCABULARY_TREES, settings.mixture, settings.seed))
    tokenizer = build_tokenizer(_corpus(trees, problems), settings.model.vocab)
    return Taught(build_model(settings.model, tokenizer, settings.seed), tokenizer, {})


def teach(settings: NanoSettings, problems: Sequence[Problem], on_step: OnStep) -> Taught:
    """Build the model and teach it.

    Args:
        settings: sizes, mixture, rates and when to end.
        problems: those the demonstrations play on: the training split.
        on_step: progress.
    """
    started = time.process_time()
    base = untaught(settings, problems)
    model, tokenizer = base.model, base.tokenizer
    trees = list(demonstrate(problems, settings.trees, settings.mixture, settings.seed))
    rng = Random(f"warmstart/{settings.seed}")
    feed = _feed(settings, tokenizer, trees, rng)
    embedding = model.model.embed_tokens.weight
    others = [weight for weight in model.parameters() if weight is not embedding]
    optimizer = torch.optim.AdamW(
        [
            {"params": [embedding], "share": settings.embedding_rate},
            {"params": others, "share": 1.0},
        ],
        betas=(0.9, 0.98),
        weight_decay=0.01,
    )
    model.train()
    metrics = {"warmstart/demonstration_f1": sum(tree.f1 for tree in trees) / len(trees)}
    for step in range(1, settings.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = group["share"] * settings.learning_rate * _rate(settings, step)
        loss = weighted_loss(model, next(feed))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        metrics["warmstart/loss"] = loss.item()
        probed = step % settings.probe_every == 0 or step == settings.steps
        if probed:
            metrics |= _probes(settings, model, tokenizer)
            metrics["warmstart/cpu_s"] = time.process_time() - started
            logger.info("step %d: %s", step, _readable(metrics))
        on_step(step, metrics)
        if probed and step >= settings.min_steps and passed(settings, metrics):
            break
    model.eval()
    return Taught(model, tokenizer, {**metrics, "warmstart/steps": float(step)})


def passed(settings: NanoSettings, metrics: Mapping[str, float]) -> bool:
    """The last probe reached its marks, for root and child."""
    return all(
        metrics[f"warmstart/probe_{kind}_{name}"] >= mark
        for name, mark in (("greedy", settings.probe_greedy), ("sampled", settings.probe_sampled))
        for kind in ("root", "child")
    )


def weighted_loss(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy of the next token, weighted token by token."""
    hidden = model.model(input_ids=batch.ids).last_hidden_state[:, :-1]  # (B, T-1, hidden)
    weights = batch.weights[:, 1:]
    counted = weights > 0
    # Padding stands on the right: causal attention does not see it, and its weight is 0.
    logits = model.lm_head(hidden[counted])  # (N, vocab)
    losses = functional.cross_entropy(logits, batch.ids[:, 1:][counted], reduction="none")
    return (losses * weights[counted]).sum() / weights.sum()


def save(taught: Taught, folder: Path) -> None:
    """Write a folder that `from_pretrained` loads."""
    taught.model.save_pretrained(folder)
    taught.tokenizer.save_pretrained(folder)


def _feed(
    settings: NanoSettings,
    tokenizer: PreTrainedTokenizerFast,
    trees: Sequence[Tree],
    rng: Random,
) -> Iterator[Batch]:
    """Batches without end: drills first, then demonstrations with a drill now and again."""
    encoder = Encoder(tokenizer, settings.observation_weight, 1.0, settings.name_weight)
    examples = _examples(settings, encoder, trees, rng)
    practice = _drills(settings, tokenizer, rng)
    for _ in range(settings.drill_steps):
        yield next(practice)
    since = 0
    while True:
        for batch in batches(examples, settings.batch_tokens, rng):
            yield batch
            since += 1
            if since == settings.drill_every - 1:
                since = 0
                yield next(practice)


def _examples(
    settings: NanoSettings, encoder: Encoder, trees: Sequence[Tree], rng: Random
) -> list[Example]:
    """The demonstrations' roots and some of their children, with slips in a share of them."""
    talks, places = [], []
    for root, *children in (tree.conversations for tree in trees):
        for talk in (_reworded(settings, root, rng), *children[:_CHILDREN_KEPT]):
            slipped = with_slip(talk, rng) if rng.random() < settings.slips else (talk, None)
            talks.append(slipped[0])
            places.append(slipped[1])
    return [noisy(example, settings.noise, rng) for example in encoder.encode(talks, places)]


def _reworded(settings: NanoSettings, root: Conversation, rng: Random) -> Conversation:
    """The conversation, asked in made-up words in a share of all cases."""
    if settings.reworded == 0 or rng.random() >= settings.reworded:
        return root
    return with_words(root, rng)


def _drills(
    settings: NanoSettings, tokenizer: PreTrainedTokenizerFast, rng: Random
) -> Iterator[Batch]:
    """Drill batches without end, a third of each kind."""
    first, second = syllable_ids(tokenizer)
    start = tokenizer.get_vocab()[USER]
    encoder = Encoder(tokenizer, observation=0.0, written=0.0, name=1.0)
    while True:
        count = settings.batch_tokens // 64 // 3 + 1
        made: list[Example] = [drills.repeat(rng, first, second, start) for _ in range(count)]
        talks = [
            _reworded(settings, drills.root_binding(rng, settings.mixture), rng)
            for _ in range(count)
        ]
        talks += [drills.child_binding(rng, settings.mixture) for _ in range(count)]
        yield collate([*made, *encoder.encode(talks)])


def _rate(settings: NanoSettings, step: int) -> float:
    """Linear warm-up, then linear decay to a tenth."""
    if step <= settings.warmup_steps:
        return step / settings.warmup_steps
    done = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    return 1.0 - 0.9 * done


def _probes(
    settings: NanoSettings, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> dict[str, float]:
    """The binding probe, greedy and at T = 1."""
    found: dict[str, ProbeResult] = {
        name: probe(model, tokenizer, settings.probe_pairs, temperature, settings.seed)
        for name, temperature in (("greedy", 0.0), ("sampled", 1.0))
    }
    return {
        f"warmstart/probe_{kind}_{name}": getattr(result, kind)
        for name, result in found.items()
        for kind in ("root", "child")
    }


def _corpus(trees: Sequence[Tree], problems: Sequence[Problem]) -> Iterator[str]:
    """What the model reads and writes, and some papers, which it may print."""
    for tree in trees:
        for conversation in tree.conversations:
            yield render(conversation)
    for problem in problems[:: max(1, len(problems) // 100)]:
        for paper in problem.papers:
            yield paper.text


def _readable(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name.split('/')[-1]} {value:.3f}" for name, value in metrics.items())
