"""Lessons of the world `names`: copying drills, and the mixture of demonstrations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING

from agent.nano import drills
from agent.nano.demonstrations import DemonstrationTree, demonstrate
from agent.nano.examples import Encoder, Example, ExampleBatch, batches, collate, noisy
from agent.nano.probe import probe
from agent.nano.settings import NanoSettings
from agent.nano.slips import with_slip
from agent.nano.tokenizer import USER, render, syllable_ids
from env.problems.schema import Problem

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

_VOCABULARY_TREES = 300
"""Trees whose texts train the tokenizer."""
_CHILDREN_KEPT = 2
"""Children of a tree that become examples; more of them would differ only in their choices."""


class NamingLessons:
    """Lessons of the world `names`: see `warmstart.Lessons`.

    Args:
        settings: mixture, drills and weights.
        problems: problems of the demonstrations: the training split.
    """

    whole: Mapping[str, str] = {}
    unseen = ()

    def __init__(self, settings: NanoSettings, problems: Sequence[Problem]) -> None:
        self._settings = settings
        self._problems = problems

    @cached_property
    def _trees(self) -> list[DemonstrationTree]:
        settings = self._settings
        return list(demonstrate(self._problems, settings.trees, settings.mixture, settings.seed))

    @property
    def metrics(self) -> Mapping[str, float]:
        """Mean F1 of the demonstrations."""
        trees = self._trees
        return {"warmstart/demonstration_f1": sum(tree.f1 for tree in trees) / len(trees)}

    def corpus(self) -> Iterator[str]:
        """Texts that the model reads and writes, and some papers, which it may print."""
        settings, problems = self._settings, self._problems
        for tree in demonstrate(problems, _VOCABULARY_TREES, settings.mixture, settings.seed):
            for conversation in tree.conversations:
                yield render(conversation)
        for problem in problems[:: max(1, len(problems) // 100)]:
            for paper in problem.papers:
                yield paper.text

    def feed(self, tokenizer: PreTrainedTokenizerFast) -> Iterator[ExampleBatch]:
        """Endless batches: drills, then demonstrations with a drill from time to time."""
        settings = self._settings
        rng = Random(f"warmstart/{settings.seed}")
        encoder = Encoder(tokenizer, settings.observation_weight, 1.0, settings.name_weight)
        examples = self._examples(encoder, rng)
        practice = self._drills(tokenizer, rng)
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

    def probe(
        self, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
    ) -> Iterator[tuple[str, float]]:
        """Results of the binding probe, greedy and at temperature 1."""
        settings = self._settings
        for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
            found = probe(model, tokenizer, settings.probe_pairs, temperature, settings.seed)
            yield from ((f"{kind}_{name}", share) for kind, share in vars(found).items())

    def _examples(self, encoder: Encoder, rng: Random) -> list[Example]:
        """Examples of roots and some of their children, a share of them with slips."""
        settings, talks, places = self._settings, [], []
        for root, *children in (tree.conversations for tree in self._trees):
            for talk in (root, *children[:_CHILDREN_KEPT]):
                slips = rng.random() < settings.slips
                slipped, place = with_slip(talk, rng) if slips else (talk, None)
                talks.append(slipped)
                places.append(place)
        return [noisy(example, settings.noise, rng) for example in encoder.encode(talks, places)]

    def _drills(self, tokenizer: PreTrainedTokenizerFast, rng: Random) -> Iterator[ExampleBatch]:
        """Endless drill batches, a third of each kind."""
        settings = self._settings
        first, second = syllable_ids(tokenizer)
        start = tokenizer.get_vocab()[USER]
        encoder = Encoder(tokenizer, observation=0.0, written=0.0, name=1.0)
        while True:
            count = settings.batch_tokens // 64 // 3 + 1
            made: list[Example] = [drills.repeat(rng, first, second, start) for _ in range(count)]
            talks = [drills.root_binding(rng, settings.mixture) for _ in range(count)]
            talks += [drills.child_binding(rng, settings.mixture) for _ in range(count)]
            yield collate([*made, *encoder.encode(talks)])
