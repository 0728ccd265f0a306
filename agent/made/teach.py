"""Teach the made model all its weights, in float32; it stands for pretraining.

The seed determines the result. Neighbours: `lessons.py`, `model.py`, and `agent/nano/warmstart.py`,
whose loss and optimizer it uses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from agent.made.lessons import MadeLessons
from agent.made.model import build_model
from agent.made.tokenizer import build_tokenizer
from agent.nano.warmstart import make_optimizer, update, weighted_loss

logger = logging.getLogger(__name__)


def make(
    size: int, steps: int, batch_tokens: int, learning_rate: float, seed: int,
    out: Path, on_step: Callable[[int, float], None], probe_every: int = 0,
):
    lessons = MadeLessons(size, seed)
    tokenizer = build_tokenizer(lessons.corpus(), list(lessons.fields))
    known = dict.fromkeys(lessons.fields, "") | {n: lessons.fields[n] for n in lessons.taught}
    model = build_model(tokenizer, seed, known)
    vocabulary = tokenizer.get_vocab()
    unseen = [vocabulary[name] for name in lessons.unseen]
    optimizer = make_optimizer(model, 0.2)
    feed = lessons.feed(tokenizer, batch_tokens)
    model.train()
    warm = max(1, steps // 20)
    for step in range(1, steps + 1):
        loss = weighted_loss(model, next(feed), unseen)
        done = (step - warm) / max(1, steps - warm)
        rate = step / warm if step <= warm else 1.0 - 0.9 * done
        update(model, optimizer, loss, learning_rate * rate)
        on_step(step, loss.item())
        if probe_every and step % probe_every == 0:
            model.eval()
            print(step, {k: round(v, 3) for k, v in lessons.probe(model, tokenizer).items()}, flush=True)
            model.train()
    model.eval()
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return model, tokenizer, lessons
