"""Compare the forms in which a small model can read: `python -m benchmarks.reader_forms`.

A reader of the keyed plan is shown ranked passages and says which of them answer a question. This
program teaches the same base each form with the same number of tokens, on passages of training
problems, and lets it read passages of documents that it was not trained on. The figure is the F1 of
the chosen passages against those with gold, a mean over problems. Run it where `rlm prepare` has
written the problems of the profile; each result is appended to a JSONL file and not made again.

Forms: `yes` is a single passage and yes or no. `before` and `after` are lists whose numbers stand
before or after each passage, replied as numbers. `quote` asks for the first words of each.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import torch

from agent.demonstrations import keyed_plan
from agent.demonstrations.rows import IGNORED, DemonstrationRow
from agent.demonstrations.supervised import train_adapter
from agent.models.base_model import prepare_base
from agent.models.chat_template import ChatFormat
from agent.policies.base import TurnRequest
from agent.policies.hf_policy import TransformersPolicy, load_model
from env.problems.schema import Problem
from env.problems.store import ProblemStore
from env.prompts import llm_messages
from tasks.config import resolve
from tasks.config.params import Params

FORMS = ("yes 1", "before 1", "before 4", "before 8", "after 4", "after 8", "after 16", "quote 8")
RANKED = 16
"""Passages of a problem, the same in every form."""
PROBLEMS = 90
"""Test problems."""
IDLE = 2
"""Readers without an answer for each that has one, in the lessons."""
WORDS = 5
"""First words of a quote."""


@dataclass(frozen=True)
class ReaderTask:
    """A reader's prompt, the right reply, and its passages."""

    prompt: str
    reply: str
    texts: tuple[str, ...]
    gold: tuple[bool, ...]


def readers(form: str, problem: Problem, params: Params) -> Iterator[ReaderTask]:
    """Readers of a problem in a form."""
    kind, count = form.split()
    found = keyed_plan.ranked(problem, RANKED, params.env, params.rewards)
    tasks = keyed_plan.VERDICTS if kind == "yes" else keyed_plan.TASKS
    for start in range(0, len(found), int(count)):
        task = tasks[params.env.prompt_style].format(question=problem.question, n=start + 1)
        part = found[start : start + int(count)]
        texts = tuple(text for _, text in part)
        gold = tuple(keyed_plan.is_gold(problem, passage, params.rewards) for passage in part)
        if kind == "yes":
            prompt, reply = f"{task}\n{texts[0]}", keyed_plan.YES_OR_NO[gold[0]]
        elif kind == "quote":
            prompt = "\n".join([f"{problem.question} Quotes:", *texts])
            reply = "\n".join(_head(t) for t, answers in zip(texts, gold, strict=True) if answers)
        else:
            line = "{n} {t}" if kind == "before" else "{t} [{n}]"
            prompt = "\n".join([task, *(line.format(n=n, t=t) for n, t in enumerate(texts, 1))])
            reply = " ".join(str(n) for n, answers in enumerate(gold, 1) if answers)
        yield ReaderTask(prompt, reply or keyed_plan.NONE, texts, gold)


def chosen(form: str, reader: ReaderTask, reply: str) -> list[bool]:
    """Which passages a reply names."""
    kind = form.split()[0]
    if kind == "yes":
        return [reply == "yes"]
    if kind == "quote":
        quotes = {_head(line) for line in reply.split("\n")}
        return [_head(text) in quotes for text in reader.texts]
    return [str(n) in reply.split() for n in range(1, len(reader.texts) + 1)]


def _head(text: str) -> str:
    return " ".join(text.split()[:WORDS])


def lessons(
    form: str, problems: Sequence[Problem], chat: ChatFormat, tokens: int, params: Params
) -> list[DemonstrationRow]:
    """Rows of readers, with so many tokens."""
    rng, rows, left = Random(0), list[DemonstrationRow](), tokens
    for problem in problems:
        every = list(readers(form, problem, params))
        some = [reader for reader in every if any(reader.gold)]
        idle = [reader for reader in every if not any(reader.gold)]
        for reader in some + rng.sample(idle, min(len(idle), IDLE * len(some))):
            prompt = chat.first(llm_messages(params.env.prompt_style, reader.prompt))
            reply = chat.completion(reader.reply)
            labels = [IGNORED] * len(prompt) + reply
            rows.append(DemonstrationRow(input_ids=prompt + reply, labels=labels))
            left -= len(labels)
        if left <= 0:
            return rows
    raise SystemExit(f"reader_forms: {len(problems)} problems have no {tokens} tokens. Lower it.")


def read(form: str, policy: TransformersPolicy, problems: Sequence[Problem], params: Params) -> Any:
    """F1 of the passages that are chosen greedily for each problem that has gold among them."""
    scores: list[float] = []
    firsts: list[list[float]] = [[], [], []]
    tokens = 0
    for problem in problems:
        every = list(readers(form, problem, params))
        if not any(gold := [answers for reader in every for answers in reader.gold]):
            continue
        requests = [
            TurnRequest(
                key=(0, number), messages=llm_messages(params.env.prompt_style, reader.prompt),
                depth=1, kind="llm", first=True, seed=0,
            )
            for number, reader in enumerate(every)
        ]  # fmt: skip
        replies = policy.act(requests)
        policy.release([request.key for request in requests])
        named = [
            answers
            for reader, reply in zip(every, replies, strict=True)
            for answers in chosen(form, reader, reply.text)
        ]
        tokens += sum(len(reply.prompt_ids) + len(reply.sampled_ids) for reply in replies)
        scores.append(_f1(named, gold))
        for most, first in enumerate(firsts, 1):
            first.append(_f1([place < most for place in range(len(gold))], gold))
    return {
        "f1": fmean(scores), "tokens": tokens / len(scores), "problems": len(scores),
        "first": max(map(fmean, firsts)), "scores": scores,
    }  # fmt: skip


def _f1(named: Sequence[bool], gold: Sequence[bool]) -> float:
    both = sum(a and b for a, b in zip(named, gold, strict=True))
    return 2 * both / (sum(named) + sum(gold))


def measure(form: str, seed: int, tokens: int, params: Params) -> dict[str, Any]:
    """Teach the base a form, and read with it."""
    torch.set_num_threads(params.threads)
    torch.manual_seed(seed)
    store = ProblemStore.load(Path("data/problems"))
    pools = {}
    for split in ("train", "test"):
        ids = [i for level in params.train.curriculum.levels for i in store.ids(split, level)]
        pools[split] = [store.get(i) for i in Random(seed).sample(sorted(ids), len(ids))]
    with TemporaryDirectory() as name:
        folder = Path(name) / "base"
        prepare_base(params.model, folder)
        model, tokenizer = load_model(folder)
        generation = params.evaluate.generation.greedy.model_copy(update={"max_turn_tokens": 48})
        test = pools["test"][:PROBLEMS]
        rows = lessons(form, pools["train"], ChatFormat(tokenizer), tokens, params)
        began = time.monotonic()
        settings = params.warmstart.sft.model_copy(update={"epochs": 1, "seed": seed})
        train_adapter(
            model, tokenizer, rows, settings, params.train,
            out=folder / "adapter", on_step=lambda step, figures: None,
        )  # fmt: skip
        seconds = time.monotonic() - began
        policy = TransformersPolicy(*load_model(folder), generation)
        taught = read(form, policy, test, params)
    lesson = {"form": form, "seed": seed, "budget": tokens, "rows": len(rows), "seconds": seconds}
    return lesson | taught


def main() -> None:
    """Measure the forms that are not in the file yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forms", nargs="+", default=list(FORMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--tokens", type=int, default=80_000, help="of the lessons of a form")
    parser.add_argument("--results", type=Path, default=Path("reader_forms.jsonl"))
    options = parser.parse_args()
    params = resolve(profile="smollm2")
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    done = [json.loads(line) for line in lines]
    for seed in options.seeds:
        for form in options.forms:
            key = (form, seed, options.tokens)
            if key not in [(row["form"], row["seed"], row["budget"]) for row in done]:
                print(f"teach {form}, seed {seed}", flush=True)
                done.append(measure(form, seed, options.tokens, params))
                with options.results.open("a") as file:
                    file.write(json.dumps(done[-1]) + "\n")
    print("| form, passages | seed | readers taught | F1 | best first k | tokens |")
    print("|---|---|---|---|---|---|")
    for row in sorted(done, key=lambda row: (row["form"], row["seed"])):
        print(
            f"| {row['form']} | {row['seed']} | {row['rows']} | "
            f"{row['f1']:.3f} | {row['first']:.3f} | {row['tokens']:.0f} |"
        )


if __name__ == "__main__":
    main()
