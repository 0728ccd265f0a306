"""Warm start: supervised training of the nano base on demonstrations, until it binds names.

It starts with copying drills. Then it trains on the mixture of `demonstrations.py` with a drill
from time to time. The probe of `probe.py` ends it, not a timer. The seed determines the result.
It is short, so an interrupted run starts again from the beginning.
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
from agent.nano.demonstrations import DemonstrationTree, demonstrate
from agent.nano.examples import Encoder, Example, ExampleBatch, batches, collate, noisy
from agent.nano.model import build_model
from agent.nano.probe import probe
from agent.nano.settings import NanoSettings
from agent.nano.slips import with_slip
from agent.nano.tokenizer import USER, build_tokenizer, render, syllable_ids
from env.problems.schema import Problem

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

logger = logging.getLogger(__name__)

OnNanoStep = Callable[[int, Mapping[str, float]], None]
"""Called after each step with its metrics, those of the last probe included."""

_VOCABULARY_TREES = 300
"""Trees whose texts train the tokenizer."""
_CHILDREN_KEPT = 2
"""Children of a tree that become examples; more of them would differ only in their choices."""


@dataclass(frozen=True)
class Taught:
    """Result of a warm start."""

    model: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerFast
    metrics: dict[str, float]


def untaught(settings: NanoSettings, problems: Sequence[Problem]) -> Taught:
    """The wired model before any training."""
    trees = list(demonstrate(problems, _VOCABULARY_TREES, settings.mixture, settings.seed))
    tokenizer = build_tokenizer(_corpus(trees, problems), settings.model.vocab)
    return Taught(build_model(settings.model, tokenizer, settings.seed), tokenizer, {})


def teach(settings: NanoSettings, problems: Sequence[Problem], on_step: OnNanoStep) -> Taught:
    """Build the model and train it.

    Args:
        settings: sizes, mixture, rates and thresholds of the probe.
        problems: problems of the demonstrations: the training split.
        on_step: receives the progress.
    """
    started = time.process_time()
    base = untaught(settings, problems)
    model, tokenizer = base.model, base.tokenizer
    trees = list(demonstrate(problems, settings.trees, settings.mixture, settings.seed))
    rng = Random(f"warmstart/{settings.seed}")
    feed = _feed(settings, tokenizer, trees, rng)
    optimizer = make_optimizer(model, settings.embedding_rate)
    model.train()
    metrics = {"warmstart/demonstration_f1": sum(tree.f1 for tree in trees) / len(trees)}
    for step in range(1, settings.steps + 1):
        loss = weighted_loss(model, next(feed))
        update(model, optimizer, loss, settings.learning_rate * _rate(settings, step))
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
    """Whether the last probe reached its thresholds for root and child."""
    return all(
        metrics[f"warmstart/probe_{kind}_{name}"] >= mark
        for name, mark in (("greedy", settings.probe_greedy), ("sampled", settings.probe_sampled))
        for kind in ("root", "child")
    )


def weighted_loss(
    model: LlamaForCausalLM, batch: ExampleBatch, unseen: Sequence[int] = ()
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


def make_optimizer(model: LlamaForCausalLM, embedding_rate: float) -> torch.optim.AdamW:
    """AdamW in which the embedding has a share of the learning rate."""
    embedding = model.model.embed_tokens.weight
    others = [weight for weight in model.parameters() if weight is not embedding]
    weights = [{"params": [embedding], "share": embedding_rate}, {"params": others, "share": 1.0}]
    return torch.optim.AdamW(weights, betas=(0.9, 0.98), weight_decay=0.01)


def update(
    model: LlamaForCausalLM, optimizer: torch.optim.AdamW, loss: torch.Tensor, rate: float
) -> None:
    """One step with clipped gradients.

    Args:
        model: model in training mode.
        optimizer: that of `make_optimizer`.
        loss: scalar loss of the model.
        rate: learning rate of this step.
    """
    for group in optimizer.param_groups:
        group["lr"] = group["share"] * rate
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def save(taught: Taught, folder: Path) -> None:
    """Write a folder that `from_pretrained` loads."""
    taught.model.save_pretrained(folder)
    taught.tokenizer.save_pretrained(folder)


def _feed(
    settings: NanoSettings,
    tokenizer: PreTrainedTokenizerFast,
    trees: Sequence[DemonstrationTree],
    rng: Random,
) -> Iterator[ExampleBatch]:
    """Endless batches: drills, then demonstrations with a drill from time to time."""
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
    settings: NanoSettings, encoder: Encoder, trees: Sequence[DemonstrationTree], rng: Random
) -> list[Example]:
    """Examples of roots and some of their children, a share of them with slips."""
    talks, places = [], []
    for root, *children in (tree.conversations for tree in trees):
        for talk in (root, *children[:_CHILDREN_KEPT]):
            slipped, place = with_slip(talk, rng) if rng.random() < settings.slips else (talk, None)
            talks.append(slipped)
            places.append(place)
    return [noisy(example, settings.noise, rng) for example in encoder.encode(talks, places)]


def _drills(
    settings: NanoSettings, tokenizer: PreTrainedTokenizerFast, rng: Random
) -> Iterator[ExampleBatch]:
    """Endless drill batches, a third of each kind."""
    first, second = syllable_ids(tokenizer)
    start = tokenizer.get_vocab()[USER]
    encoder = Encoder(tokenizer, observation=0.0, written=0.0, name=1.0)
    while True:
        count = settings.batch_tokens // 64 // 3 + 1
        made: list[Example] = [drills.repeat(rng, first, second, start) for _ in range(count)]
        talks = [drills.root_binding(rng, settings.mixture) for _ in range(count)]
        talks += [drills.child_binding(rng, settings.mixture) for _ in range(count)]
        yield collate([*made, *encoder.encode(talks)])


def _rate(settings: NanoSettings, step: int) -> float:
    """Factor of the learning rate: linear warm-up, then linear decay to 0.1."""
    if step <= settings.warmup_steps:
        return step / settings.warmup_steps
    done = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    return 1.0 - 0.9 * done


def _probes(
    settings: NanoSettings, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> dict[str, float]:
    """Metrics of the binding probe, greedy and at temperature 1."""
    metrics: dict[str, float] = {}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        found = probe(model, tokenizer, settings.probe_pairs, temperature, settings.seed)
        metrics |= {f"warmstart/probe_{kind}_{name}": share for kind, share in vars(found).items()}
    return metrics


def _corpus(trees: Sequence[DemonstrationTree], problems: Sequence[Problem]) -> Iterator[str]:
    """Texts that the model reads and writes, and some papers, which it may print."""
    for tree in trees:
        for conversation in tree.conversations:
            yield render(conversation)
    for problem in problems[:: max(1, len(problems) // 100)]:
        for paper in problem.papers:
            yield paper.text


def _readable(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name.split('/')[-1]} {value:.3f}" for name, value in metrics.items())
