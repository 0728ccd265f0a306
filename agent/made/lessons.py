"""Lessons of the made model: roots that hardly read, drills of roots that do, and readers.

They stand for pretraining. Roots know the functions of the REPL, but most answer with all sentences
that they find. Drills teach how code asks readers, and not when. Readers know the field of each
taught benchmark. So a few demonstrations can put both together. Only text that the policy writes
has a loss. Neighbours: `agent/policies/demonstrator.py` demonstrates, `agent/nano/plans.py` has the
lessons of nano.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import torch

from agent.nano.examples import Example, ExampleBatch, batches, collate
from agent.nano.plans import ReadingTalks, pick, sentences_on
from agent.policies import reading_cells as cells
from agent.policies.chat_template import ChatFormat
from agent.policies.scripted import block
from env import prompts
from env.models import Message
from env.problems import names
from env.problems.fields import BENCHMARK, QUESTIONS
from env.problems.lexicon import FIELDS, untaught
from env.problems.settings import HITS
from env.settings import LimitSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM


@dataclass(frozen=True)
class Talk:
    """A conversation."""

    opening: list[Message]
    turns: list[str]
    """Texts of the policy."""
    observed: list[str]
    """Observations, one between two turns."""


PAPERS = (2, 3, 4, 5, 6)
LINES = 4
"""Most lines of a reader, as the demonstrator gives them."""
ENDINGS = {"all": 0.7, "look": 0.26, "readers": 0.04}
"""Shares of the roots: answer with all sentences, print one before, or ask readers."""
_TASK = "{question} Numbers:"
_LIMITS = LimitSettings()
"""Compact prompts name no limit."""
_FITTING = 0.35
"""Share of the lines that answer the question; in problems it is an eighth."""
_NAMED = 3.0
"""Loss weight of names and fields; other text of the policy has 1."""
_READERS, _DRILLS = 0.15, 0.35
"""Shares of the batches; the rest are roots."""
_FIRST_READERS = 100
"""Batches of readers at the start, before other lessons can undo the wiring."""
_POOL = 200
_CORPUS = 300


def asking(question: str, method: str, papers: int) -> Talk:
    """Conversation of a root that asks readers, as the demonstrator does."""
    return Talk(
        opening=prompts.root_messages("compact", _LIMITS, 0, question, papers),
        turns=[
            block(cells.find_sentences(method)),
            block(cells.ask_readers(_TASK.format(question=question), LINES)),
        ],
        observed=[_printed(str(HITS * papers), ["lines"])],
    )


def reader_task(question: str, numbers: Iterable[int], lines: Sequence[str]) -> str:
    """Prompt of a reader of these lines."""
    numbered = (f"{number} {line}" for number, line in zip(numbers, lines, strict=True))
    return "\n".join([_TASK.format(question=question), *numbered])


class MadeLessons:
    """Conversations about sentences with the taught names of a lexicon.

    Args:
        size: names of the lexicon.
        seed: seed of all draws.
    """

    def __init__(self, size: int, seed: int) -> None:
        self._seed = seed
        self.fields = ReadingTalks(size).fields
        self.taught = sorted(set(self.fields) - untaught(size))
        self.unseen = sorted(untaught(size))
        """Names that no lesson holds."""

    def corpus(self) -> Iterator[str]:
        """Texts without the names of the lexicon, which are whole tokens."""
        rng = Random(f"corpus/{self._seed}")
        for _ in range(_CORPUS):
            for talk in (self.root(rng, "readers"), self.root(rng, "look")):
                opening = [message.content for message in talk.opening]
                yield "\n".join([*opening, *talk.turns, *talk.observed])
            reader = self.reader(rng)
            yield BENCHMARK.sub("", reader.opening[1].content)
            yield from (reader.opening[0].content, reader.turns[0])

    def root(self, rng: Random, ending: str) -> Talk:
        """Conversation of a root with this ending."""
        method, papers = rng.choice(names.COMMON), rng.choice(PAPERS)
        question = rng.choice(QUESTIONS).format(x=method, f=rng.choice(FIELDS))
        talk = asking(question, method, papers)
        if ending == "readers":
            return talk
        *turns, _ = talk.turns
        observed = talk.observed
        if ending == "look":
            turns.append(block("print(lines[0])"))
            found = sentences_on(rng, method, [rng.choice(self.taught)])
            observed = [*observed, _printed(found[0], [])]
        return Talk(talk.opening, [*turns, block("FINAL(lines)")], observed)

    def reader(self, rng: Random) -> Talk:
        """Conversation of a reader."""
        method, field = rng.choice(names.COMMON), rng.choice(FIELDS)
        question = rng.choice(QUESTIONS).format(x=method, f=field)
        found = HITS * rng.choice(PAPERS)
        start = rng.randrange(0, found, LINES)
        numbers = range(start, min(start + LINES, found))
        shown = [self._benchmark(rng, field) for _ in numbers]
        lines = sentences_on(rng, method, shown)
        right = [
            str(n) for n, name in zip(numbers, shown, strict=True) if self.fields[name] == field
        ]
        opening = prompts.llm_messages("compact", reader_task(question, numbers, lines))
        return Talk(opening, [" ".join(right) or "none"], [])

    def _benchmark(self, rng: Random, field: str) -> str:
        """A name, often one of the field."""
        fits = rng.random() < _FITTING
        while True:
            name = rng.choice(self.taught)
            if (self.fields[name] == field) == fits:
                return name

    def feed(self, tokenizer: PreTrainedTokenizerFast, batch_tokens: int) -> Iterator[ExampleBatch]:
        """Endless batches of roots, drills of their names, and readers."""
        rng = Random(f"lessons/{self._seed}")
        encoder = TalkEncoder(tokenizer)
        roots, drills, readers = (
            self._batched(rng, encoder, batch_tokens, kind) for kind in ("root", "drill", "reader")
        )
        for _ in range(_FIRST_READERS):
            yield next(readers)
        while True:
            draw = rng.random()
            if draw < _READERS:
                yield next(readers)
            else:
                yield next(drills if draw < _READERS + _DRILLS else roots)

    def _batched(
        self, rng: Random, encoder: TalkEncoder, batch_tokens: int, kind: str
    ) -> Iterator[ExampleBatch]:
        while True:
            examples = [encoder.encode(self._talk(rng, kind)) for _ in range(_POOL)]
            if kind == "drill":
                for example in examples:
                    encoder.mask_choice(example)
            yield from batches(examples, batch_tokens, rng)

    def _talk(self, rng: Random, kind: str) -> Talk:
        if kind == "reader":
            return self.reader(rng)
        return self.root(rng, "readers" if kind == "drill" else pick(rng, ENDINGS))

    def probe(
        self, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast
    ) -> dict[str, float]:
        """Mean probability of the right turns: of readers, and of roots.

        `asked` counts from the word that begins to ask readers, `plain` is a root that does not.
        """
        rng = Random("probe")
        encoder = TalkEncoder(tokenizer)
        examples = {
            "reader": [encoder.encode(self.reader(rng)) for _ in range(100)],
            "asked": [encoder.encode(self.root(rng, "readers")) for _ in range(40)],
            "plain": [encoder.encode(self.root(rng, "all")) for _ in range(40)],
        }
        for example in examples["asked"]:
            encoder.mask_choice(example)
        return {kind: _probability(model, some) for kind, some in examples.items()}


class TalkEncoder:
    """Encoder of conversations with the token ids of a rollout and loss weights.

    Args:
        tokenizer: the made tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._chat = ChatFormat(tokenizer)
        vocabulary = tokenizer.get_vocab()
        words = [*names.FIRST, *names.SECOND, *(w.capitalize() for w in names.FIRST), *FIELDS]
        self._task = vocabulary["taskĠ"]
        self._named = {vocabulary[word] for word in words if word in vocabulary}

    def encode(self, talk: Talk) -> Example:
        """Encode a conversation; what is read has no loss."""
        ids: list[int] = []
        weights: list[float] = []
        read = self._chat.first(talk.opening)
        for number, text in enumerate(talk.turns):
            if number:
                seen = Message(role="user", content=talk.observed[number - 1])
                read = self._chat.follow([seen], ended=True)
            turn = self._chat.completion(text)
            ids += [*read, *turn]
            weights += [0.0] * len(read)
            weights += [_NAMED if token in self._named else 1.0 for token in turn]
        return Example(np.asarray(ids), np.asarray(weights, dtype=np.float32))

    def mask_choice(self, example: Example) -> None:
        """Take the loss off all up to the word that begins to ask readers."""
        at = int(np.flatnonzero(example.ids == self._task)[-1])
        example.weights[: at + 1] = 0.0


@torch.inference_mode()
def _probability(model: Qwen3ForCausalLM, examples: Sequence[Example]) -> float:
    """Mean probability of all tokens with a weight, of each conversation."""
    total = 0.0
    for start in range(0, len(examples), 20):
        batch = collate(examples[start : start + 20])
        logs = model(input_ids=batch.ids).logits[:, :-1].log_softmax(-1)  # [B, T - 1, V]
        chosen = logs.gather(-1, batch.ids[:, 1:, None])[..., 0]
        total += float((chosen * (batch.weights[:, 1:] > 0)).sum(-1).exp().sum())
    return total / len(examples)


def _printed(text: str, new: Sequence[str]) -> str:
    return prompts.cell_message(text, 0, new, "", _LIMITS)
