"""Compare the sampling loop with transformers' `generate`.

    python -m benchmarks.decoding --model DIR [--threads 2] [--groups 2]

Each group has eight trees. First the roots write a turn of 100 tokens after a prompt of their
group, then readers reply with 3 to 10 tokens to a question that the trees of a group share. Before
the readers' first tokens, every loop reads what it has not read yet. Last, one root writes alone.

A model that nobody has taught writes nothing that repeats, so the logits get a script: after each
token, one successor has the probability that `--certain` says, and the model's own distribution
has the rest. Every loop pays for the script, and plays it at T = 1. `generate` with
`prompt_lookup_num_tokens` takes one row and is greedy.

The loops are compared in float32, and this one also plays in bfloat16. Every variant is run once in
each repeat, in turn, and medians of seconds are printed. A rate counts sampled tokens. Seconds of
the processor exclude what other processes took.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from agent.decoding.drafts import DraftStore
from agent.decoding.row_buffer import CacheShape
from agent.decoding.sampling import SampledTurn, sample
from agent.policies.hf_policy import load_model
from agent.settings import GenerationSettings

_TREES, _CODE = 8, 100
GENERATE, BFLOAT16 = "`generate`", "this loop, bfloat16"
Prompts = list[list[int]]


def script(words: int, groups: int, stop: int) -> torch.Tensor:
    """The successor of each token: [vocabulary]."""
    first = words // 2
    after = first + torch.arange(words) % _CODE  # a slip goes on somewhere in the code
    after[first : first + _CODE] = torch.arange(first + 1, first + _CODE + 1)
    after[first + _CODE - 1] = stop
    for group in range(groups):
        reply = question(words, group)
        after[reply : reply + 16] = torch.arange(reply + 1, reply + 17)
        after[reply + 3 + 3 * group % 8] = stop
    return after


def question(words: int, group: int) -> int:
    """Token that ends a reader's prompt, from which its reply is counted."""
    return words // 2 + _CODE + 1 + 17 * group


@contextmanager
def scripted(model: Any, after: torch.Tensor, certain: float) -> Iterator[list[int]]:
    """Let the model follow a script for the block; yields the sizes of its forward passes."""
    sizes: list[int] = []

    def speak(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        ids, logits = kwargs["input_ids"], output.logits
        sizes.append(ids.numel())
        place = after[ids[:, -logits.shape[1] :]][..., None]
        odds = torch.logsumexp(logits, -1, keepdim=True) + torch.tensor(certain).logit()
        logits.scatter_(-1, place, odds)

    hook = model.register_forward_hook(speak, with_kwargs=True)
    try:
        yield sizes
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
        "roots": [prompt for prompt in roots for _ in range(_TREES)],
        "readers": [prompt for prompt in readers for _ in range(_TREES)],
        "one root": roots[:1],
    }


def ours(model: Any, prompts: Prompts, stop: int, limit: int, **more: Any) -> list[list[int]]:
    """Sampled turns of this project's loop."""
    first = 1000 * len(prompts)  # no phase repeats the turns of another one
    rows = [SampledTurn(n, ids, 0, None, limit, seed=first + n) for n, ids in enumerate(prompts)]
    for _ in sample(model, CacheShape.of(model), rows, frozenset([stop]), 1.0, **more):
        pass
    return [row.sampled for row in rows]


def generate(
    model: Any, prompts: Prompts, settings: GenerationSettings, pad: int
) -> list[list[int]]:
    """Turns that transformers' `generate` samples in one batch, without padding."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts])
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=settings.temperature,
            top_k=0,
            max_new_tokens=settings.max_turn_tokens,
            pad_token_id=pad,
        )
    rows = out[:, longest:].tolist()
    return [list(itertools.takewhile(lambda token: token != pad, row)) for row in rows]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
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
    model, tokenizer = load_model(options.model, device="cpu", dtype=torch.float32)
    short, _ = load_model(options.model, device="cpu", dtype=torch.bfloat16)
    words, stop = model.config.vocab_size, tokenizer.eos_token_id
    model.generation_config.eos_token_id = stop
    settings = GenerationSettings(max_turn_tokens=_CODE + 20)
    pad = tokenizer.pad_token_id

    def now(prompts: Prompts, model: Any = model, **more: Any) -> list[list[int]]:
        return ours(model, prompts, stop, _CODE + 20, **more)

    def greedy(prompts: Prompts) -> list[list[int]]:
        ids = torch.tensor(prompts)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=settings.max_turn_tokens,
            prompt_lookup_num_tokens=10,
            pad_token_id=pad,
        )
        return [out[0, ids.shape[1] :].tolist()]

    measured: Any = defaultdict(list)
    for _ in range(options.repeats):
        variants: dict[str, Callable[[Prompts], list[list[int]]]] = {
            "this loop, nothing guessed": now,
            "this loop": functools.partial(now, drafts=DraftStore()),
            BFLOAT16: functools.partial(now, model=short, drafts=DraftStore()),
            GENERATE: lambda p: generate(model, p, settings, pad),
            "`generate`, prompt lookup, greedy": greedy,
        }
        for phase, prompts in prompts_of(words, options.groups, options.prompt).items():
            for name, variant in variants.items():
                if variant is greedy and len(prompts) > 1:
                    continue
                spoken = short if name == BFLOAT16 else model
                with scripted(
                    spoken, script(words, options.groups, stop), options.certain
                ) as sizes:
                    clocks = time.perf_counter(), time.process_time()
                    tokens = sum(map(len, variant(prompts)))
                    wall, cpu = time.perf_counter() - clocks[0], time.process_time() - clocks[1]
                measured[phase, name].append((wall, cpu, tokens, len(sizes), sum(sizes)))
    report(measured)


def report(measured: Any) -> None:
    """Print medians, and how many times as fast as `generate` each variant is."""
    print("| phase | variant | s | s of the processor | tokens/s | passes | tokens read | faster |")
    print("|---|---|---|---|---|---|---|---|")
    for (phase, name), runs in measured.items():
        wall, cpu, tokens, passes, read = (statistics.median(v) for v in zip(*runs, strict=True))
        _, base_cpu, base_tokens, _, _ = (
            statistics.median(v) for v in zip(*measured[phase, GENERATE], strict=True)
        )
        faster = tokens / cpu / (base_tokens / base_cpu)
        print(
            f"| {phase} | {name} | {wall:.1f} | {cpu:.1f} | {tokens / wall:.0f} | {passes:.0f} | "
            f"{read:.0f} | {faster:.1f} |"
        )


if __name__ == "__main__":
    main()
