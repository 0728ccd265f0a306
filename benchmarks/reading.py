"""Measure how well the nano model reads, by form of the answer: `python -m benchmarks.reading`.

A call holds sentences on one method and several benchmarks. A reader names the field of each
benchmark: in order (`fields`), or with each name repeated before it (`repeat`).
No sentence names the field: it is knowledge of the model. Training ends after
`--seconds` of CPU. It starts with drills of names and their fields.

An answer is exact if all of its tokens, the end included, are the most likely ones.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import torch

from agent.nano.examples import Encoder, Example, ExampleBatch, collate
from agent.nano.model import build_model
from agent.nano.plans import reader_talk, sentences_on
from agent.nano.reading import DRILLED, LENGTHS, calls_in, drill_lists
from agent.nano.settings import NanoSettings
from agent.nano.tokenizer import Conversation, build_tokenizer, render
from agent.nano.warmstart import make_optimizer, update, weighted_loss
from env.problems import names
from env.problems.lexicon import lexicon, untaught

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

logger = logging.getLogger(__name__)

MEASURED = (1, 4, 8, 16, 24)
CALLS = 100
"""Calls measured of each length."""
_CORPUS = 400


@dataclass(frozen=True)
class Task:
    """The calls that are trained and measured."""

    fields: dict[str, str]
    """Field of each name."""
    form: str
    """`fields` or `repeat`."""

    def call(self, rng: Random, benchmarks: Sequence[str], methods: Sequence[str]) -> Conversation:
        """Call with a sentence for each benchmark, all on one method, and its right answer."""
        sentences = sentences_on(rng, rng.choice(methods), benchmarks)
        return reader_talk(sentences, "".join(map(self.item, benchmarks)))

    def item(self, name: str) -> str:
        """Part of the answer for one sentence."""
        return name + self.answer(name) if self.form == "repeat" else self.answer(name)

    def answer(self, name: str) -> str:
        """The field, a single token."""
        return f" {self.fields[name]} " if self.form == "repeat" else f"{self.fields[name]} "


@dataclass(frozen=True)
class ReadingModel:
    """A model, its task and the names that it is taught."""

    model: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerFast
    encoder: Encoder
    task: Task
    taught: list[str]
    unseen: list[str]


def build(options: argparse.Namespace, settings: NanoSettings, seed: int) -> ReadingModel:
    """The untrained reader."""
    fields = lexicon(options.lexicon)
    task = Task(fields, options.format)
    left_out = untaught(options.lexicon)
    taught = [name for name in fields if name not in left_out]
    rng = Random(f"corpus/{seed}")
    corpus = []
    for _ in range(_CORPUS):
        text = render(task.call(rng, rng.sample(taught, 4), names.COMMON))
        for name in taught:  # listed names are whole tokens, added afterwards
            text = text.replace(name, "")
        corpus.append(text)
    tokenizer = build_tokenizer(corpus, settings.model.vocab, whole=list(fields))
    shown = set(taught) if options.wired else set()
    wired = {name: task.answer(name) if name in shown else "" for name in fields}
    model = build_model(settings.model, tokenizer, seed, wired)
    encoder = Encoder(tokenizer, settings.observation_weight, 1.0, 1.0)
    return ReadingModel(model, tokenizer, encoder, task, taught, sorted(left_out))


def drill(reader: ReadingModel, rng: Random, tokens: int) -> ExampleBatch:
    """Lists of random names, each with its field; only fields have a loss."""

    def listed() -> str:
        drawn = rng.sample(reader.taught, DRILLED)
        return "".join(name + reader.task.answer(name) for name in drawn)

    return drill_lists(reader.tokenizer, listed, tokens)


def calls(reader: ReadingModel, rng: Random, tokens: int, length: int) -> ExampleBatch:
    """Calls of one length."""
    drawn = [rng.sample(reader.taught, length) for _ in range(calls_in(tokens, length))]
    talks = [reader.task.call(rng, benchmarks, names.COMMON) for benchmarks in drawn]
    return collate(reader.encoder.encode(talks))


def train(
    reader: ReadingModel, options: argparse.Namespace, settings: NanoSettings, seed: int
) -> int:
    """Train for `options.seconds` of CPU; return the number of steps."""
    rng = Random(f"reading/{seed}")
    model = reader.model.train()
    vocabulary = reader.tokenizer.get_vocab()
    unseen = [vocabulary[name] for name in reader.unseen]
    optimizer = make_optimizer(model, options.embedding_rate)
    started = time.process_time()
    marks: Iterator[float] = iter(options.report)
    mark = next(marks, 1.0)
    step = 0
    while (done := (time.process_time() - started) / options.seconds) < 1.0:
        step += 1
        rate = options.learning_rate * min(1.0, step / settings.warmup_steps) * (1 - 0.9 * done)
        if done < options.drills or step % settings.drill_every == 0:
            batch = drill(reader, rng, settings.batch_tokens)
        else:
            longest = 1 + int((done - options.drills) / options.growth * (len(LENGTHS) - 1))
            batch = calls(reader, rng, settings.batch_tokens, rng.choice(LENGTHS[: longest + 1]))
        loss = weighted_loss(model, batch, unseen)
        update(model, optimizer, loss, rate)
        if done >= mark:
            mark = next(marks, 1.0)
            paused = time.process_time()
            logger.info(
                "%3.0f%%, step %d, loss %.3f: %s", 100 * done, step, loss.item(), measure(reader)
            )
            started += time.process_time() - paused
    return step


@torch.inference_mode()
def measure(reader: ReadingModel) -> dict[str, float]:
    """Share of exact answers by number of sentences; field and copy of untaught names."""
    model, training = reader.model, reader.model.training
    model.eval()
    rng = Random("measure")
    found = {}
    for length in MEASURED:
        talks = [
            reader.task.call(rng, rng.sample(reader.taught, length), names.RESERVED)
            for _ in range(CALLS)
        ]
        rights = [right for _, right in _forced(reader, talks)]
        found[str(length)] = sum(bool(right.all()) for right in rights) / CALLS
    talks = [reader.task.call(rng, [name], names.RESERVED) for name in reader.unseen]
    rights = [right for _, right in _forced(reader, talks)]
    field = 1 if reader.task.form == "repeat" else 0
    found["untaught field"] = sum(bool(right[field]) for right in rights) / len(rights)
    if field:
        found["untaught copied"] = sum(bool(right[0]) for right in rights) / len(rights)
    model.train(training)
    return found


def _forced(
    reader: ReadingModel, talks: Sequence[Conversation]
) -> Iterator[tuple[Example, np.ndarray]]:
    """Whether each written token is the most likely one after the right tokens before it."""
    examples = reader.encoder.encode(talks)
    for start in range(0, len(examples), 25):
        group = examples[start : start + 25]
        best = reader.model(input_ids=collate(group).ids).logits.argmax(-1).numpy()  # [B, T]
        for example, predicted in zip(group, best, strict=True):
            written = np.flatnonzero(example.weights >= 1.0)
            yield example, predicted[written - 1] == example.ids[written]


def main() -> None:
    """Train, measure and print a row for each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=100.0, help="seconds of CPU")
    parser.add_argument("--lexicon", type=int, default=512, help="names")
    parser.add_argument("--format", choices=("fields", "repeat"), default="repeat")
    parser.add_argument("--wired", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--drills", type=float, default=0.1, help="share of time, at the start")
    parser.add_argument("--growth", type=float, default=0.4, help="share until all lengths occur")
    parser.add_argument("--learning-rate", type=float, default=1.5e-3)
    parser.add_argument("--embedding-rate", type=float, default=0.2, help="share of the rate")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--report", type=float, nargs="*", default=[0.25, 0.5, 0.75])
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    settings = NanoSettings()
    model = settings.model.model_copy(update={"layers": options.layers})
    settings = settings.model_copy(update={"model": model})
    titles = [*map(str, MEASURED), "untaught field", "untaught copied"]
    print(f"| names | form | wired | seed | steps | CPU s | {' | '.join(titles)} |")
    print("|---" * (6 + len(titles)) + "|")
    for seed in options.seeds:
        reader = build(options, settings, seed)
        steps = train(reader, options, settings, seed)
        shares = measure(reader)
        cells = [f"{shares[title]:.2f}" if title in shares else "-" for title in titles]
        start = f"{options.lexicon} | {options.format} | {'yes' if options.wired else 'no'}"
        row = f"{start} | {seed} | {steps} | {options.seconds:.0f} | {' | '.join(cells)}"
        print(f"| {row} |", flush=True)


if __name__ == "__main__":
    main()
