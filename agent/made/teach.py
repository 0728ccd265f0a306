"""Teach the made model all its weights, in float32; it stands for pretraining.

The seed determines the result. Neighbours: `lessons.py`, `model.py`, and `agent/nano/warmstart.py`,
whose loss and optimizer it uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.made.lessons import MadeLessons
from agent.made.model import build_model
from agent.made.tokenizer import build_tokenizer
from agent.nano.warmstart import make_optimizer, update, weighted_loss
from agent.settings import MadeSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

OnMadeStep = Callable[[int, float], None]
"""Called after each step with its loss."""
_EMBEDDING_RATE = 0.2
"""Share of the rate for embeddings, whose wiring is easily undone."""
_WARMUP = 200
"""Steps in which the learning rate rises: large steps at the start undo the wiring."""


@dataclass(frozen=True)
class MadeModel:
    """A model with its tokenizer."""

    model: Qwen3ForCausalLM
    tokenizer: PreTrainedTokenizerFast


def build(lessons: MadeLessons, seed: int) -> MadeModel:
    """The wired model before any training."""
    tokenizer = build_tokenizer(lessons.corpus(), list(lessons.fields))
    known = {name: lessons.fields[name] for name in lessons.taught}
    model = build_model(tokenizer, seed, dict.fromkeys(lessons.fields, "") | known)
    return MadeModel(model, tokenizer)


def teach(settings: MadeSettings, lessons: MadeLessons, on_step: OnMadeStep) -> MadeModel:
    """Build the model and train it.

    Args:
        settings: steps, rate and seed.
        lessons: what it learns.
        on_step: receives the progress.
    """
    made = build(lessons, settings.seed)
    vocabulary = made.tokenizer.get_vocab()
    unseen = [vocabulary[name] for name in lessons.unseen]
    feed = lessons.feed(made.tokenizer, settings.batch_tokens)
    optimizer = make_optimizer(made.model, _EMBEDDING_RATE)
    made.model.train()
    for step in range(1, settings.steps + 1):
        loss = weighted_loss(made.model, next(feed), unseen)
        rate = settings.learning_rate * _share(step, settings.steps)
        update(made.model, optimizer, loss, rate)
        on_step(step, loss.item())
    made.model.eval()
    return made


def _share(step: int, steps: int) -> float:
    """Factor of the learning rate: linear warm-up, then linear decay to 0.1."""
    warm = min(_WARMUP, steps)
    return step / warm if step <= warm else 1.0 - 0.9 * (step - warm) / max(1, steps - warm)
