"""Time a GRPO gradient and a supervised step: rows padded, and rows as prefix trees.

    python -m benchmarks.training_speed [--model FOLDER] [--groups 8] [--repeats 3] [--threads 2]

The rows are those of groups of eight
trees: a root of two turns, whose code differs by a few tokens, and readers whose prompt the trees
of a group share. All ways have the same rows and the same losses, and take turns:

- trees: the project's trainers, in float32 and in bfloat16.
- padded: what they did up to version 0.2: rows padded to batches of 2,048 tokens, with logits of
  all columns from the first sampled one (GRPO), or of all (supervised).
- transformers: `model(labels=...)` on the padded rows. TRL 1.15 has only a Triton kernel for both
  losses, which needs a GPU; this is its pass without the kernel.

Tokens a second count each row's tokens, shared or not. CPU seconds are those of this process, for
a machine that has other work.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch

from agent.demonstrations import supervised
from agent.demonstrations.rows import IGNORED, DemonstrationRow, demonstration_rows
from agent.policies.hf_policy import load_model
from agent.rollouts.trajectory import FrameRecord, Trajectory, TurnRecord
from agent.settings import LogprobCheckSettings, SftSettings, TrainSettings
from agent.training import loss_inputs, token_logprobs, trainer
from agent.training.batching import micro_batches


class Sizes(NamedTuple):
    """Tokens of the messages, and number of readers of a tree."""

    system: int
    first: int
    code: int
    observation: int
    end: int
    readers: int
    prompt: int
    reply: int


SIZES = Sizes(60, 90, 100, 100, 30, readers=3, prompt=310, reply=5)
TREES = 8
PADDED_TOKENS = 2048
"""`train.micro_batch_tokens` of the padded ways."""


def groups_of(count: int, vocabulary: int) -> list[list[Trajectory]]:
    """Groups of trees of random tokens."""
    rng, sizes = np.random.default_rng(0), SIZES

    def text(length: int) -> list[int]:
        return [int(token) for token in rng.integers(3, vocabulary, length)]

    def turn(prompt: list[int], sampled: list[int]) -> TurnRecord:
        zeros = [0.0] * len(sampled)
        return TurnRecord("", "", "stop", prompt_ids=prompt, sampled_ids=sampled, logprobs=zeros)

    system = text(sizes.system)
    groups = []
    for number in range(count):
        first, code = system + text(sizes.first), text(sizes.code)
        seen, prompts = text(sizes.observation), [text(sizes.prompt) for _ in range(sizes.readers)]
        group = []
        for _ in range(TREES):
            mine = list(code)
            for place in rng.integers(sizes.code // 10, sizes.code, 3):
                mine[place] = text(1)[0]
            turns = [turn(first, mine), turn(seen, text(sizes.end))]
            frames = {0: FrameRecord(0, None, 0, "rlm", turns, "final")}
            for child, prompt in enumerate(prompts, 1):
                read = turn(system + prompt, text(sizes.reply))
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


def way(name: str) -> ExitStack:
    """The trainers as they are (`trees`), or with other passes."""
    stack = ExitStack()
    if name != "trees":
        loss = padded_loss if name == "padded" else plain_loss
        stack.enter_context(patch.object(token_logprobs, "sampled_logprobs", padded_logprobs))
        stack.enter_context(patch.object(trainer, "micro_batches", by_length))
        stack.enter_context(patch.object(loss_inputs, "KL_EVERY", 3))
        stack.enter_context(patch.object(supervised, "packs", supervised._by_length))
        stack.enter_context(patch.object(supervised.AdapterTrainer, "compute_loss", loss))
    return stack


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock and of the CPU."""
    started = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started[0], time.process_time() - started[1]


def grpo(
    loaded: tuple[Any, Any], groups: list[list[Trajectory]], train: TrainSettings, out: Path
) -> list[tuple[float, float]]:
    """Time the gradient of a step, and one measurement of the step limit."""
    model, tokenizer = loaded
    made = trainer.TreeGRPOTrainer(
        *(model, tokenizer, train),
        output_dir=out,
        rollout=lambda model, step: groups,
        on_step=lambda step, figures: None,
        state=dict,
    )
    gradient = timed(lambda: made.training_step(made.live_model, [0]))
    return [gradient, timed(made._step_kl)]


def sft(
    loaded: tuple[Any, Any], rows: Sequence[DemonstrationRow], train: TrainSettings, out: Path
) -> list[tuple[float, float]]:
    """Time the gradient of a step that has all rows."""
    model, tokenizer = loaded
    made = supervised.AdapterTrainer(
        *(model, tokenizer, rows, SftSettings(), train),
        output_dir=out,
        on_step=lambda step, figures: None,
    )
    labels = torch.tensor(sum(label != IGNORED for row in rows for label in row["labels"]))

    def step() -> None:
        for batch in made.get_train_dataloader():
            made.training_step(made.model, batch, labels)

    return [timed(step)]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/base"))
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1024])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    groups = groups_of(options.groups, load_model(options.model)[0].config.vocab_size)
    rows = demonstration_rows(dict(enumerate(tree for group in groups for tree in group)))
    tokens = sum(len(row["input_ids"]) for row in rows)
    print(f"{len(rows)} rows of {tokens} tokens, {options.threads} threads", flush=True)
    ways = {f"trees of {nodes}": (nodes, torch.float32) for nodes in options.nodes}
    ways |= {f"{name}, bfloat16": (most, torch.bfloat16) for name, (most, _) in ways.items()}
    ways |= dict.fromkeys(("padded", "transformers"), (PADDED_TOKENS, torch.float32))
    seconds: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(options.repeats):
        for name, (most, dtype) in ways.items():
            large = dict.fromkeys(("max_abs", "mean_abs", "p99_abs"), 1e9)
            train = TrainSettings(
                micro_batch_tokens=most, logprob_check=LogprobCheckSettings(**large)
            )
            with tempfile.TemporaryDirectory() as out, way(name.split()[0]):
                loaded = load_model(options.model, dtype=dtype)
                found = {"supervised": sft(loaded, rows, train, Path(out))}
                if name != "transformers":  # it has no loss of GRPO
                    loaded = load_model(options.model, dtype=dtype)
                    gradient, limit = grpo(loaded, groups, train, Path(out))
                    found |= {"GRPO": [gradient], "step limit": [limit]}
            for part, times in found.items():
                seconds.setdefault((part, name), []).extend(times)
                print(part, name, times, flush=True)
    columns = ["part", "way", "seconds", "CPU seconds", "tokens/s", "against padded"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for (part, name), times in sorted(seconds.items()):
        clock, cpu = (statistics.median(column) for column in zip(*times, strict=True))
        base = statistics.median(both[1] for both in seconds[part, "padded"])
        print(
            f"| {part} | {name} | {clock:.2f} | {cpu:.2f} | {tokens / clock:.0f} "
            f"| {base / cpu:.2f} |"
        )


if __name__ == "__main__":
    main()
