"""Lessons of the world `fields`: plans of trees, answers of readers, names with their fields.

A root searches its method and counts the sentences. Then it calls readers, calls children that
call readers, prints pages and reads them itself, or answers without reading. A reader repeats the
name of each benchmark and says its field, which is knowledge and not text. Decisions are drawn
separately, so that good ones are frequent alone and rare together.

Sentences are written here and not taken from problems: they hold only names that are taught.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import torch

from agent.nano.demonstrations import Conversation
from agent.nano.examples import Encoder, Example, ExampleBatch, batches, collate, noisy
from agent.nano.settings import Kept, NanoSettings, PlanKind, ReadingMixture
from agent.nano.slips import with_slip
from agent.nano.strategies import block, pick
from agent.nano.tokenizer import render
from env import prompts
from env.problems import names
from env.problems.fields import QUESTIONS
from env.problems.lexicon import FIELDS, lexicon, untaught
from env.problems.names import FACTS, SCORES
from env.problems.settings import HITS
from env.settings import LimitSettings

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

_LIMITS = LimitSettings()
"""Placeholder: compact prompts name no limit, and the observations here are never cut."""
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

_ASK_READERS = """\
p = ["\\n".join(s[k:k+{size}]) for k in range(0, len(s), {size})]
r = " ".join(llm_query_batched(p)).split()
"""
_ASK_CHILDREN = """\
p = list(context.values())
FINAL(rlm_query_batched(["{method} on {field}"] * len(p), p))"""


@dataclass(frozen=True)
class ReadingPlan:
    """Decisions of a root."""

    kind: PlanKind
    size: int
    """Sentences of a reader's call, or of a page."""
    most: int | None
    """Most sentences that are looked at; None for all."""
    keep: Kept


BEST = ReadingPlan("readers", 4, None, "field")


def draw_plan(rng: Random, mixture: ReadingMixture) -> ReadingPlan:
    """Draw a root's decisions."""
    most = pick(rng, mixture.most)
    kind = pick(rng, mixture.plan)
    return ReadingPlan(
        kind=kind,
        size=int(pick(rng, mixture.page if kind == "pages" else mixture.size)),
        most=None if most == "all" else int(most),
        keep=pick(rng, mixture.keep),
    )


def sentences_on(rng: Random, method: str, benchmarks: Sequence[str]) -> list[str]:
    """A sentence on each benchmark, with a random wording and score."""
    return [rng.choice(FACTS).format(x=method, y=name, n=rng.choice(SCORES)) for name in benchmarks]


def reader_talk(sentences: Sequence[str], answer: str) -> Conversation:
    """Conversation of a reader of these sentences."""
    opening = prompts.llm_messages("compact", "\n".join(sentences))
    return [*(m.model_dump() for m in opening), _written(answer)]


def calls_in(tokens: int, length: int) -> int:
    """Readers of `length` sentences in a batch of about so many tokens."""
    return max(1, tokens // (12 + 11 * length))


def drill_lists(
    tokenizer: PreTrainedTokenizerFast, listed: Callable[[], str], tokens: int
) -> ExampleBatch:
    """Lists of names, each with its field; only fields have a loss.

    Args:
        tokenizer: tokenizer in which names and fields are one token each.
        listed: text of a list of `DRILLED` names.
        tokens: tokens of the batch.
    """
    made = []
    for _ in range(tokens // (2 * DRILLED)):
        ids = np.asarray(tokenizer.encode(listed(), add_special_tokens=False))
        weights = np.zeros(len(ids), dtype=np.float32)
        weights[1::2] = 1.0
        made.append(Example(ids, weights))
    return collate(made)


class ReadingTalks:
    """Conversations about sentences with the taught names of a lexicon.

    Args:
        size: names of the lexicon.
    """

    def __init__(self, size: int) -> None:
        self.fields = lexicon(size)
        self.taught = sorted(set(self.fields) - untaught(size))

    def answer(self, benchmarks: Sequence[str]) -> str:
        """Right answer of a reader."""
        return "".join(f"{name} {self.fields[name]} " for name in benchmarks)

    def sentences(self, rng: Random, method: str, count: int) -> list[tuple[str, str]]:
        """Benchmarks and sentences about a method."""
        benchmarks = rng.sample(self.taught, count)
        return list(zip(benchmarks, sentences_on(rng, method, benchmarks), strict=True))

    def reader(self, rng: Random, method: str, count: int) -> Conversation:
        """Conversation of a reader of `count` sentences."""
        hits = self.sentences(rng, method, count)
        return reader_talk([text for _, text in hits], self.answer([name for name, _ in hits]))

    def child(self, method: str, field: str, keep: Kept) -> Conversation:
        """Conversation of a child that has one paper read."""
        opening = prompts.child_messages("compact", _LIMITS, 0, f"{method} on {field}", "")
        asked = 'r = llm_query("\\n".join(s)).split()\n' if keep == "field" else ""
        code = f's = search(context, "{method}")\n{asked}{_ending(keep, field)}'
        return [*(m.model_dump() for m in opening), _written(block(code))]

    def root(
        self, rng: Random, plan: ReadingPlan, method: str, field: str, papers: int
    ) -> Conversation:
        """Conversation of a root."""
        question = rng.choice(QUESTIONS).format(x=method, f=field)
        opening = prompts.root_messages("compact", _LIMITS, 0, question, papers, False)
        search = f's = sum(search(context, "{method}").values(), [])\nprint(len(s))'
        count = HITS * papers
        talk = [m.model_dump() for m in opening]
        talk += [_written(block(search)), _printed(str(count), ["s"])]
        first = "" if plan.most is None else f"s = s[:{plan.most}]\n"
        if plan.kind == "unread":
            keep = "all" if plan.keep == "field" else plan.keep
            return [*talk, _written(block(_ending(keep, field)))]
        if plan.kind == "children":
            return [*talk, _written(block(_ASK_CHILDREN.format(method=method, field=field)))]
        if plan.kind == "readers":
            asked = _ASK_READERS.format(size=plan.size)
            return [*talk, _written(block(first + asked + _ending(plan.keep, field)))]
        hits = self.sentences(rng, method, min(count, plan.most or count))
        code = f"{first}r = []\n"
        for at in range(0, len(hits), plan.size):
            end = at + plan.size
            page, left = hits[at:end], max(0, len(hits) - end)
            shown = f'print("\\n".join(s[{at}:{end}]), len(s[{end}:]))'
            text = "\n".join(sentence for _, sentence in page)
            talk += [_written(block(code + shown)), _printed(f"{text} {left}", [] if at else ["r"])]
            code = f'r += "{self.answer([name for name, _ in page])}".split()\n'
        return [*talk, _written(block(code + _ending(plan.keep, field)))]


def _ending(keep: Kept, field: str) -> str:
    """Code that answers with some of the sentences `s`, by the readers' words `r`."""
    fitting = f'FINAL([t for t in s for n, f in zip(r, r[1:]) if f == "{field}" and n in t])'
    return {"field": fitting, "all": "FINAL(s)", "first": "FINAL(s[:1])"}[keep]


def _written(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _printed(text: str, new: Sequence[str]) -> dict[str, str]:
    return {"role": "user", "content": prompts.cell_message(f"{text}\n", 0, new, "", _LIMITS)}


class ReadingLessons:
    """Lessons of the world `fields`: see `warmstart.Lessons`.

    Args:
        settings: mixture, drills and weights.
        size: names of the lexicon.
    """

    def __init__(self, settings: NanoSettings, size: int) -> None:
        self._settings = settings
        self._talks = ReadingTalks(size)
        fields = self._talks.fields
        shown = set(self._talks.taught)
        self.whole = {name: f" {fields[name]} " if name in shown else "" for name in fields}
        self.metrics: Mapping[str, float] = {}

    def corpus(self) -> Iterator[str]:
        """Texts without the names of the lexicon, which are whole tokens."""
        rng = Random(f"corpus/{self._settings.seed}")
        for _ in range(_CORPUS):
            for talk in [
                *self._trees(rng, 1),
                self._talks.reader(rng, rng.choice(names.COMMON), 4),
            ]:
                text = render(talk)
                for name in self.whole:
                    text = text.replace(name, "")
                yield text
        for field in FIELDS:  # a field is one token wherever it is
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
        """Share of trees and readers whose names and fields are right; see `warmstart.Lessons`."""
        rng = Random("probe")
        count = self._settings.probe_pairs
        methods = [rng.choice(names.RESERVED) for _ in range(count)]
        roots = [self._talks.root(rng, BEST, m, rng.choice(FIELDS), 8) for m in methods]
        readers = [self._talks.reader(rng, method, _PROBED) for method in methods]
        words = _fields(tokenizer)
        for kind, talks, written in (("root", roots, 0.0), ("child", readers, 1.0)):
            encoder = Encoder(tokenizer, 0.0, written, 1.0, words)
            greedy, sampled = _right(model, encoder.encode(talks))
            yield f"{kind}_greedy", greedy
            yield f"{kind}_sampled", sampled

    def _trees(self, rng: Random, count: int) -> Iterator[Conversation]:
        """Conversations of roots, and a child of each root that asks children."""
        mixture = self._settings.reading
        for _ in range(count):
            method, field = rng.choice(names.COMMON), rng.choice(FIELDS)
            plan = draw_plan(rng, mixture)
            yield self._talks.root(rng, plan, method, field, rng.choice(_PAPERS))
            if plan.kind == "children":
                yield self._talks.child(method, field, pick(rng, mixture.keep))

    def _roots(self, encoder: Encoder, rng: Random) -> Iterator[ExampleBatch]:
        settings = self._settings
        while True:
            talks, places = [], []
            for talk in self._trees(rng, _POOL):
                slips = rng.random() < settings.slips
                slipped, place = with_slip(talk, rng) if slips else (talk, None)
                talks.append(slipped)
                places.append(place)
            examples = [
                noisy(example, settings.noise, rng)
                for example in encoder.encode(talks, places)
                if len(example.ids) <= settings.model.context
            ]
            yield from batches(examples, settings.batch_tokens, rng)

    def _readers(self, encoder: Encoder, rng: Random, length: int) -> ExampleBatch:
        count = calls_in(self._settings.batch_tokens, length)
        methods = [rng.choice(names.COMMON) for _ in range(count)]
        return collate(encoder.encode([self._talks.reader(rng, m, length) for m in methods]))

    def _drills(self, tokenizer: PreTrainedTokenizerFast, rng: Random) -> Iterator[ExampleBatch]:
        """Endless drills: names with their fields, then roots with a loss on names and fields."""
        tokens = self._settings.batch_tokens
        encoder = Encoder(tokenizer, 0.0, 0.0, 1.0, _fields(tokenizer))

        def listed() -> str:
            return self._talks.answer(rng.sample(self._talks.taught, DRILLED))

        while True:
            yield drill_lists(tokenizer, listed, tokens)
            methods = [rng.choice(names.COMMON) for _ in range(tokens // _ROOT_TOKENS)]
            roots = [
                self._talks.root(rng, BEST, method, rng.choice(FIELDS), rng.choice(_PAPERS))
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
        best = (logs.argmax(-1) == target) | ~counts
        greedy += float(best.all(-1).sum())
        chosen = logs.gather(-1, target[..., None])[..., 0]
        sampled += float((chosen * counts).sum(-1).exp().sum())
    model.train(training)
    return greedy / len(examples), sampled / len(examples)
