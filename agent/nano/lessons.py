"""Lessons of the warm start: drills of names, trees (`plans.py`), then answers of readers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random

import numpy as np
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from agent.nano import plans
from agent.nano.examples import Encoder, Example, ExampleBatch, batches, collate, noisy
from agent.nano.sizes import NanoSettings
from agent.nano.tokenizer import Conversation, render
from env.problems import names
from env.problems.fields import BENCHMARK, HITS
from env.problems.lexicon import FIELDS, strangers, untaught

LENGTHS = (1, 2, 4, 8, 16, 24)
"""Sentences of a reader, from the first lesson to the last."""
_PAPERS = (4, 8, 16)
MOST_SENTENCES = HITS * max(_PAPERS)
"""Sentences of a demonstration, each with another name."""
_POOL = 200
"""Trees that are batched together."""
DRILLED = 24
"""Names of a drill."""
_ROOT_TOKENS = 170
"""About the tokens of a root's conversation."""
_CORPUS = 400
_READERS = 0.35
"""Share of the batches with readers' answers, after the drills."""
_PROBED = 4
"""Sentences of the readers that are probed."""


class ReadingLessons:
    """Lessons of a warm start.

    Args:
        settings: drills and weights.
        size: names of the lexicon.
    """

    whole: Mapping[str, str]
    """Names with a token of their own, and the answer that follows each; "" without one."""
    unseen: Sequence[str]
    """Names of `whole` that no text holds."""

    def __init__(self, settings: NanoSettings, size: int) -> None:
        self._settings = settings
        self._talks = plans.ReadingTalks(size, strangers(size))
        self._known = plans.ReadingTalks(size)
        fields, taught = self._talks.fields, self._talks.taught
        answers = {name: f" {fields[name]} " for name in taught}
        self.whole = dict.fromkeys([*fields, *strangers(size)], "") | answers
        self.unseen = sorted(untaught(size))

    def corpus(self) -> Iterator[str]:
        """Texts without the names of the lexicon, which are whole tokens."""
        rng = Random(f"corpus/{self._settings.seed}")
        for _ in range(_CORPUS):
            for talk in [
                *self._trees(rng, 1),
                self._talks.reader(rng, rng.choice(names.COMMON), 4),
            ]:
                yield BENCHMARK.sub("", render(talk))
        for field in (*FIELDS, plans.UNKNOWN):  # one token wherever it is
            yield from [field, f" {field}", f"{field} ", f" {field} "] * 20

    def feed(self, tokenizer: PreTrainedTokenizerFast) -> Iterator[ExampleBatch]:
        """Endless batches: drills and trees, then readers of ever more sentences as well."""
        settings = self._settings
        rng = Random(f"reading/{settings.seed}")
        observation, name = settings.observation_weight, settings.name_weight
        encoder = Encoder(tokenizer, observation, 1.0, name, _fields(tokenizer))
        trees, drills = self._roots(encoder, rng), self._drills(tokenizer, rng)
        step = 0
        while True:
            step += 1
            if step <= settings.drill_steps or step % settings.drill_every == 0:
                yield next(drills)
            elif rng.random() < _READERS:
                done = (step - settings.drill_steps) / (settings.min_steps - settings.drill_steps)
                longest = 1 + int(min(1.0, 2 * done) * (len(LENGTHS) - 1))
                yield self._readers(encoder, rng, rng.choice(LENGTHS[: longest + 1]))
            else:
                yield next(trees)

    def probe(
        self, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
    ) -> Iterator[tuple[str, float]]:
        """Shares of trees and readers whose names and fields are right: `root_greedy` and so on."""
        rng = Random("probe")
        methods = [rng.choice(names.RESERVED) for _ in range(self._settings.probe_pairs)]
        roots = [self._known.root(rng, plans.BEST, m, rng.choice(FIELDS), 8) for m in methods]
        readers = [self._known.reader(rng, method, _PROBED) for method in methods]
        words = _fields(tokenizer)
        for kind, talks, written in (("root", roots, 0.0), ("child", readers, 1.0)):
            encoder = Encoder(tokenizer, 0.0, written, 1.0, words)
            greedy, sampled = _right(model, encoder.encode(talks))
            yield f"{kind}_greedy", greedy
            yield f"{kind}_sampled", sampled

    def _trees(self, rng: Random, count: int) -> Iterator[Conversation]:
        """Conversations of roots, and a child of each root that asks children."""
        for _ in range(count):
            method, field = rng.choice(names.COMMON), rng.choice(FIELDS)
            plan = plans.draw_plan(rng)
            root = self._talks.root(rng, plan, method, field, rng.choice(_PAPERS))
            if plan.kind == "pages" and rng.random() < plans.FORGETFUL:
                yield from plans.forgetful(root)
            else:
                yield root
            if plan.kind == "children":
                yield self._talks.child(method, field, plans.pick(rng, plans.KEPT))

    def _roots(self, encoder: Encoder, rng: Random) -> Iterator[ExampleBatch]:
        settings = self._settings
        while True:
            talks, places = [], []
            for talk in self._trees(rng, _POOL):
                slips = rng.random() < settings.slips
                slipped, place = plans.with_slip(talk, rng) if slips else (talk, None)
                talks.append(slipped)
                places.append(place)
            examples = [
                noisy(example, settings.noise, rng)
                for example in encoder.encode(talks, places)
                if len(example.ids) <= settings.model.context
            ]
            yield from batches(examples, settings.batch_tokens, rng)

    def _readers(self, encoder: Encoder, rng: Random, length: int) -> ExampleBatch:
        count = max(1, self._settings.batch_tokens // (12 + 11 * length))  # 12 + 11 a sentence
        methods = [rng.choice(names.COMMON) for _ in range(count)]
        return collate(encoder.encode([self._talks.reader(rng, m, length) for m in methods]))

    def _drills(self, tokenizer: PreTrainedTokenizerFast, rng: Random) -> Iterator[ExampleBatch]:
        """Endless drills: names with their fields, then roots with a loss on names and fields."""
        tokens = self._settings.batch_tokens
        encoder = Encoder(tokenizer, 0.0, 0.0, 1.0, _fields(tokenizer))

        while True:
            lists = []
            for _ in range(tokens // (2 * DRILLED)):
                listed = self._talks.answer(rng, rng.sample(self._talks.shown, DRILLED))
                ids = np.asarray(tokenizer.encode(listed, add_special_tokens=False))
                weights = np.zeros(len(ids), dtype=np.float32)
                weights[1::2] = 1.0  # only fields have a loss
                lists.append(Example(ids, weights))
            yield collate(lists)
            methods = [rng.choice(names.COMMON) for _ in range(tokens // _ROOT_TOKENS)]
            roots = [
                self._talks.root(rng, plans.BEST, method, rng.choice(FIELDS), rng.choice(_PAPERS))
                for method in methods
            ]
            yield collate(encoder.encode(roots))


def _fields(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Tokens of the fields, as code writes them."""
    return [tokenizer.encode(field, add_special_tokens=False)[0] for field in FIELDS]


@torch.inference_mode()
def _right(model: LlamaForCausalLM, examples: Sequence[Example]) -> tuple[float, float]:
    """Share of examples whose tokens with a weight are right, greedy and at temperature 1.

    Each token is predicted after the right ones before it, so the second is an expectation.

    Args:
        model: model in either mode, which is restored.
        examples: conversations.
    """
    training = model.training
    model.eval()
    greedy = sampled = 0.0
    for start in range(0, len(examples), 25):
        batch = collate(examples[start : start + 25])
        logs = model(input_ids=batch.ids).logits[:, :-1].log_softmax(-1)  # [B, T - 1, V]
        target = batch.ids[:, 1:]
        counts = batch.weights[:, 1:] > 0
        greedy += float(((logs.argmax(-1) == target) | ~counts).all(-1).sum())
        sampled += float((logs.gather(-1, target[..., None])[..., 0] * counts).sum(-1).exp().sum())
    model.train(training)
    return greedy / len(examples), sampled / len(examples)
