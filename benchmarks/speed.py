"""Compare the speed of sampling or of training with that of other ways to do the same.

    python -m benchmarks.speed [decoding | training] [--model DIR] [--groups 2] [--threads 1]

`decoding` plays groups of eight trees with the sampling loop and with transformers' `generate`.
First the roots write a turn of 100 tokens after a prompt of their group, then readers reply with 3
to 10 tokens to a question that the trees of a group share. Before the readers' first tokens, every
loop reads what it has not read yet. Last, one root writes alone. A model that nobody has taught
writes nothing that repeats, so the logits get a script: after each token, one successor has the
probability that `--certain` says, and the model's own distribution has the rest. Every loop pays
for the script, and plays it at T = 1. `generate` with `prompt_lookup_num_tokens` takes one row and
is greedy.

`training` times a GRPO gradient, the measurement of the step limit and a supervised step on the
rows of such groups: a root of two turns, whose code differs by a few tokens, and readers whose
prompt the trees of a group share. All ways have the same rows and the same losses:

- trees: the project's trainers, in float32 and in bfloat16.
- padded: what they did up to version 0.2: rows padded to batches of 2,048 tokens, with logits of
  all columns from the first sampled one (GRPO), or of all (supervised).
- transformers: `model(labels=...)` on the padded rows. TRL 1.15 has only a Triton kernel for both
  losses, which needs a GPU; this is its pass without the kernel.

Every way runs once in each repeat, in turn, and medians are printed. A rate counts sampled tokens,
or in training those of all rows, shared or not. CPU seconds are those of this process, for a
machine that has other work, and ways are compared by them.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from agent.decoding.drafts import DraftStore
from agent.decoding.row_buffer import CacheShape
from agent.decoding.sampling import SampledTurn, sample
from agent.demonstrations import supervised
from agent.demonstrations.rows import IGNORED, DemonstrationRow, demonstration_rows
from agent.policies.hf_policy import load_model
from agent.rollouts.trajectory import FrameRecord, Trajectory, TurnRecord
from agent.settings import LogprobCheckSettings, SftSettings, TrainSettings
from agent.training import loss_inputs, token_logprobs, trainer
from agent.training.batching import micro_batches

Prompts = list[list[int]]
Run = tuple[float, float, int]
"""Seconds by the clock and of the CPU, and tokens."""
Measured = dict[tuple[str, str], list[Run]]
"""Runs by part and way."""

TREES, CODE = 8, 100
TURN = CODE + 20
"""Most tokens of a turn."""
GENERATE, BFLOAT16, PADDED = "`generate`", "this loop, bfloat16", "padded"


def timed(work: Callable[[], Any], tokens: int = 0) -> Run:
    """Time some work on so many tokens; 0: those of the turns that it returns."""
    started = time.perf_counter(), time.process_time()
    done = work()
    clock, cpu = time.perf_counter() - started[0], time.process_time() - started[1]
    return clock, cpu, tokens or sum(map(len, done))


# Decoding.


def script(words: int, groups: int, stop: int) -> torch.Tensor:
    """The successor of each token: [vocabulary]."""
    first = words // 2
    after = first + torch.arange(words) % CODE  # a slip goes on somewhere in the code
    after[first : first + CODE] = torch.arange(first + 1, first + CODE + 1)
    after[first + CODE - 1] = stop
    for group in range(groups):
        reply = question(words, group)
        after[reply : reply + 16] = torch.arange(reply + 1, reply + 17)
        after[reply + 3 + 3 * group % 8] = stop
    return after


def question(words: int, group: int) -> int:
    """Token that ends a reader's prompt, from which its reply is counted."""
    return words // 2 + CODE + 1 + 17 * group


@contextmanager
def scripted(model: Any, after: torch.Tensor, certain: float) -> Iterator[None]:
    """Let the model follow a script for the block."""

    def speak(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        ids, logits = kwargs["input_ids"], output.logits
        place = after[ids[:, -logits.shape[1] :]][..., None]
        odds = torch.logsumexp(logits, -1, keepdim=True) + torch.tensor(certain).logit()
        logits.scatter_(-1, place, odds)

    hook = model.register_forward_hook(speak, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def prompts_of(words: int, groups: int, length: int) -> dict[str, Prompts]:
    """Prompts of each phase."""
    generator = torch.Generator().manual_seed(0)

    def some(count: int) -> list[int]:
        return torch.randint(10, words // 2, (count,), generator=generator).tolist()

    system = some(length // 2)
    roots = [[*system, *some(length // 2)] for _ in range(groups)]
    readers = [[*system, *some(length // 2), question(words, g)] for g in range(groups)]
    return {
        "roots": [prompt for prompt in roots for _ in range(TREES)],
        "readers": [prompt for prompt in readers for _ in range(TREES)],
        "one root": roots[:1],
    }


def ours(model: Any, stop: int, prompts: Prompts, **more: Any) -> Prompts:
    """Turns of this project's loop."""
    first = 1000 * len(prompts)  # no phase repeats the turns of another one
    rows = [SampledTurn(n, ids, 0, None, TURN, seed=first + n) for n, ids in enumerate(prompts)]
    for _ in sample(model, CacheShape.of(model), rows, frozenset([stop]), 1.0, **more):
        pass
    return [row.sampled for row in rows]


def generate(model: Any, pad: int, prompts: Prompts, **more: Any) -> Prompts:
    """Turns of transformers' `generate` in one batch, without padding."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts])
    how = {"max_new_tokens": TURN, "pad_token_id": pad}
    how |= more or {"do_sample": True, "temperature": 1.0, "top_k": 0}
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=mask, **how)
    rows = out[:, longest:].tolist()
    return [list(itertools.takewhile(lambda token: token != pad, row)) for row in rows]


def decoding(options: argparse.Namespace) -> Measured:
    """Time each way to sample."""
    model, tokenizer = load_model(options.model, device="cpu", dtype=torch.float32)
    short, _ = load_model(options.model, device="cpu", dtype=torch.bfloat16)
    words, stop, pad = model.config.vocab_size, tokenizer.eos_token_id, tokenizer.pad_token_id
    model.generation_config.eos_token_id = stop
    greedy: dict[str, Any] = {"do_sample": False, "prompt_lookup_num_tokens": 10}
    after = script(words, options.groups, stop)
    measured: Measured = defaultdict(list)
    for _ in range(options.repeats):
        ways: dict[str, Callable[[Prompts], Prompts]] = {
            "this loop, nothing guessed": functools.partial(ours, model, stop),
            "this loop": functools.partial(ours, model, stop, drafts=DraftStore()),
            BFLOAT16: functools.partial(ours, short, stop, drafts=DraftStore()),
            GENERATE: functools.partial(generate, model, pad),
            "`generate`, prompt lookup, greedy": functools.partial(generate, model, pad, **greedy),
        }
        for phase, prompts in prompts_of(words, options.groups, options.prompt).items():
            for name, way in ways.items():
                if "greedy" in name and len(prompts) > 1:
                    continue
                with scripted(short if name == BFLOAT16 else model, after, options.certain):
                    run = timed(functools.partial(way, prompts))
                measured[phase, name].append(run)
    return measured


# Training.


def groups_of(count: int, vocabulary: int) -> list[list[Trajectory]]:
    """Groups of trees of random tokens."""
    rng = np.random.default_rng(0)

    def text(length: int) -> list[int]:
        return [int(token) for token in rng.integers(3, vocabulary, length)]

    def turn(prompt: list[int], sampled: list[int]) -> TurnRecord:
        zeros = [0.0] * len(sampled)
        return TurnRecord("", "", "stop", prompt_ids=prompt, sampled_ids=sampled, logprobs=zeros)

    system = text(60)
    groups = []
    for number in range(count):
        first, code, seen = system + text(90), text(CODE), text(100)
        prompts = [text(310) for _ in range(3)]
        group = []
        for _ in range(TREES):
            mine = list(code)
            for place in rng.integers(CODE // 10, CODE, 3):
                mine[place] = text(1)[0]
            turns = [turn(first, mine), turn(seen, text(30))]
            frames = {0: FrameRecord(0, None, 0, "rlm", turns, "final")}
            for child, prompt in enumerate(prompts, 1):
                read = turn(system + prompt, text(5))
                frames[child] = FrameRecord(child, 0, 1, "llm", [read], "final")
            reward = float(rng.random())
            group.append(Trajectory(f"p{number}", "easy", frames=frames, reward=reward))
        groups.append(group)
    return groups


def padded_logprobs(
    model: Any,
    ids_B_T: torch.Tensor,
    attention_B_T: torch.Tensor,
    sampled_B_C: torch.Tensor,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of sampled tokens, from a pass over padded rows."""
    columns = sampled_B_C.shape[1]
    logits = model(
        input_ids=ids_B_T,
        attention_mask=attention_B_T,
        logits_to_keep=columns + 1,
        use_cache=False,
    ).logits[:, :-1]
    logprobs_N_V = torch.log_softmax(logits[sampled_B_C].float() / temperature, dim=-1)
    logps_N = logprobs_N_V.gather(-1, ids_B_T[:, -columns:][sampled_B_C][:, None])[:, 0]
    with torch.no_grad():
        entropies_N = -(logprobs_N_V.exp() * logprobs_N_V).sum(-1)
    blank = logps_N.new_zeros(sampled_B_C.shape)
    return (
        blank.masked_scatter(sampled_B_C, logps_N),
        blank.masked_scatter(sampled_B_C, entropies_N),
    )


def padded_loss(_: Any, model: Any, inputs: Any, num_items_in_batch: Any = None, **__: Any) -> Any:
    """Cross-entropy of labels, from logits of all tokens of padded rows."""
    labels_B_T = inputs["labels"][:, 1:]
    counted = labels_B_T != IGNORED
    logits = model(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False
    ).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(
        logits[counted].float(), labels_B_T[counted], reduction="sum"
    )
    return loss / num_items_in_batch


def plain_loss(_: Any, model: Any, inputs: Any, num_items_in_batch: Any = None, **__: Any) -> Any:
    """The model's own loss."""
    return model(**inputs, num_items_in_batch=num_items_in_batch, use_cache=False).loss


def by_length(*arguments: Any, **options: Any) -> Any:
    """Micro-batches of rows of similar length."""
    return micro_batches(*arguments, **{**options, "trees": False})


def passes(name: str) -> ExitStack:
    """The trainers as they are (`trees`), or with other passes."""
    stack = ExitStack()
    if not name.startswith("trees"):
        loss = padded_loss if name == PADDED else plain_loss
        stack.enter_context(patch.object(token_logprobs, "sampled_logprobs", padded_logprobs))
        stack.enter_context(patch.object(trainer, "micro_batches", by_length))
        stack.enter_context(patch.object(loss_inputs, "KL_EVERY", 3))
        stack.enter_context(patch.object(supervised, "packs", supervised._by_length))
        stack.enter_context(patch.object(supervised.AdapterTrainer, "compute_loss", loss))
    return stack


def grpo(
    loaded: tuple[Any, Any], groups: list[list[Trajectory]], train: TrainSettings, out: Path
) -> list[Callable[[], Any]]:
    """The gradient of a step, and one measurement of the step limit."""
    made = trainer.TreeGRPOTrainer(
        *(*loaded, train),
        output_dir=out,
        rollout=lambda model, step: groups,
        on_step=lambda step, figures: None,
        state=dict,
    )
    return [lambda: made.training_step(made.live_model, [0]), made._step_kl]


def sft(
    loaded: tuple[Any, Any], rows: Sequence[DemonstrationRow], train: TrainSettings, out: Path
) -> Callable[[], Any]:
    """The gradient of a step that has all rows."""
    made = supervised.AdapterTrainer(
        *(*loaded, rows, SftSettings(), train),
        output_dir=out,
        on_step=lambda step, figures: None,
    )
    labels = torch.tensor(sum(label != IGNORED for row in rows for label in row["labels"]))

    def step() -> None:
        for batch in made.get_train_dataloader():
            made.training_step(made.model, batch, labels)

    return step


def training(options: argparse.Namespace) -> Measured:
    """Time each way to train."""
    groups = groups_of(options.groups, load_model(options.model)[0].config.vocab_size)
    rows = demonstration_rows(dict(enumerate(tree for group in groups for tree in group)))
    tokens = sum(len(row["input_ids"]) for row in rows)
    large = LogprobCheckSettings(**dict.fromkeys(("max_abs", "mean_abs", "p99_abs"), 1e9))
    ways = {
        "trees": (1024, torch.float32),
        "trees, bfloat16": (1024, torch.bfloat16),
        PADDED: (2048, torch.float32),
        "transformers": (2048, torch.float32),
    }
    measured: Measured = defaultdict(list)
    for _, (name, (most, dtype)) in itertools.product(range(options.repeats), ways.items()):
        train = TrainSettings(micro_batch_tokens=most, logprob_check=large)
        with tempfile.TemporaryDirectory() as out, passes(name):
            loaded = load_model(options.model, dtype=dtype)
            step = sft(loaded, rows, train, Path(out))
            measured["supervised", name].append(timed(step, tokens))
            if name != "transformers":  # it has no loss of GRPO
                loaded = load_model(options.model, dtype=dtype)
                gradient, limit = grpo(loaded, groups, train, Path(out))
                measured["GRPO", name].append(timed(gradient, tokens))
                measured["step limit", name].append(timed(limit, tokens))
    return measured


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("decoding", "training"), default="decoding")
    parser.add_argument("--model", type=Path, default=Path("models/base"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=300, help="tokens of a prompt")
    parser.add_argument("--certain", type=float, default=0.97)
    options = parser.parse_args()
    if not options.model.is_dir():
        parser.error(f"{options.model} holds no model. Run the stage warmstart (or `make full`).")
    torch.set_num_threads(options.threads)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {options.threads} thread(s)")
    measured = decoding(options) if options.what == "decoding" else training(options)
    print("| part | way | seconds | CPU seconds | tokens/s | faster |\n|---|---|---|---|---|---|")
    for (part, name), runs in sorted(measured.items(), key=lambda item: item[0][0]):
        clock, cpu, tokens = map(statistics.median, zip(*runs, strict=True))
        base = measured.get((part, GENERATE)) or measured[part, PADDED]
        _, base_cpu, base_tokens = map(statistics.median, zip(*base, strict=True))
        faster = tokens / cpu / (base_tokens / base_cpu)
        print(
            f"| {part} | {name} | {clock:.2f} | {cpu:.2f} | {tokens / clock:.0f} | {faster:.1f} |"
        )


if __name__ == "__main__":
    main()
