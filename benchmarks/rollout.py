"""Speed of rollouts on the real environment, beside what else one could use.

    python -m benchmarks.rollout [--model DIR] [--threads 1] [--episodes 64] [--repeats 3]

Episodes are whole trees sampled at T = 1 by a taught base (a random model plays nothing). The
bare forward pass is one decoding step of 64 rows, cached, at the rollout's mean context, without
sampling, text or environment. Every variant is played once in each repeat, in turn, and the
median is told. What the peers do, and the root-only form, stand in `rollout_peers.py`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agent.models import TransformersPolicy, load_model
from agent.policy import FrameKey, TurnReply, TurnRequest
from agent.rollout import EpisodeSpec, play
from agent.settings import GenerationSettings
from agent.trajectory import Trajectory
from benchmarks.rollout_peers import GeneratePolicy, generate, trl_loop
from env.client import Sessions
from env.models import Message
from env.problems.store import ProblemStore
from tasks.config import Params, resolve
from tasks.deploy import local_server

Measured = dict[str, list[tuple[int, float]]]
"""(tokens, seconds) of each repeat, by variant."""

TREES, AT_ONCE = "this engine", "this engine, a round's turns sent together"
ALONE, PER_TURN = "this engine, one episode at a time", "`generate`, batched per turn"
ROOT, TRL = "this engine, root only", "TRL `environment_factory`, root only"
FREE = "the environment alone, root only"
BARE = "bare forward pass"


class SentTogether:
    """The policy without its stream: nothing is sent before every turn of a round is written."""

    def __init__(self, policy: TransformersPolicy) -> None:
        self.act, self.release = policy.act, policy.release


class Replayed:
    """Says again what was said in recorded episodes: what is left is the environment's time."""

    def __init__(self, played: Sequence[Trajectory]) -> None:
        self.played = played
        self.turns: Counter[FrameKey] = Counter()

    def act(self, requests: Sequence[TurnRequest]) -> list[TurnReply]:
        """The recorded turns, tokens included."""
        replies = []
        for request in requests:
            episode, frame = request.key
            turn = self.played[episode].frames[frame].turns[self.turns[request.key]]
            self.turns[request.key] += 1
            replies.append(
                TurnReply(turn.text, turn.finish, turn.prompt_ids, turn.sampled_ids, turn.logprobs)
            )
        return replies

    def release(self, keys: Iterable[FrameKey]) -> None:
        """Nothing is kept for them."""


class Timed(TransformersPolicy):
    """Counts the seconds that are the policy's, and those of the model's forward passes."""

    def __init__(self, model: Any, tokenizer: Any, settings: GenerationSettings) -> None:
        super().__init__(self._clocked(model), tokenizer, settings)
        self.policy_s = self.forward_s = 0.0

    def stream(self, requests: Sequence[TurnRequest]) -> Iterator[tuple[int, TurnReply]]:
        """As ever, by the clock."""
        replies = super().stream(requests)
        while True:
            started = time.perf_counter()
            reply = next(replies, None)
            self.policy_s += time.perf_counter() - started
            if reply is None:
                return
            yield reply

    def _clocked(self, model: Any) -> Any:
        started = [0.0]

        def before(*_: Any) -> None:
            started[0] = time.perf_counter()

        def after(*_: Any) -> None:
            self.forward_s += time.perf_counter() - started[0]

        self.hooks = [
            model.register_forward_pre_hook(before),
            model.register_forward_hook(after),
        ]
        return model


def sampled(played: Sequence[Trajectory]) -> int:
    """Tokens that the policy wrote."""
    return sum(
        len(turn.sampled_ids)
        for trajectory in played
        for frame in trajectory.frames.values()
        for turn in frame.turns
    )


def mean_context(played: Sequence[Trajectory]) -> int:
    """Mean number of tokens that stand before a sampled one."""
    before = count = 0
    for trajectory in played:
        for frame in trajectory.frames.values():
            read = 0
            for turn in frame.turns:
                read += len(turn.prompt_ids)
                new = len(turn.sampled_ids)
                before += new * read + new * (new - 1) // 2
                count += new
                read += new
    return round(before / count)


def bare_forward(model: Any, rows: int, context: int, steps: int = 30) -> tuple[int, float]:
    """(tokens, seconds) of decoding steps without sampling."""
    import torch

    from agent.decoding import Batch, CacheShape, Row

    ids = [5] * (context - steps // 2)
    with torch.inference_mode():
        batch = Batch(
            model,
            CacheShape.of(model),
            [
                Row(place=i, tokens=ids, cached=0, past=None, limit=steps, seed=0)
                for i in range(rows)
            ],
            prefill_tokens=8192,
        )
        started = time.perf_counter()
        for _ in range(steps):
            batch.step()
    return rows * steps, time.perf_counter() - started


def rate(runs: Sequence[tuple[float, float]]) -> float:
    """Median of things a second."""
    return statistics.median(things / seconds for things, seconds in runs)


def measure(model: Any, tokenizer: Any, params: Params, options: argparse.Namespace) -> None:
    """Play every variant `repeats` times and print the table."""
    settings = GenerationSettings(batch_frames=64)
    problems = ProblemStore.generate(params.prepare.synthetic)
    count = options.episodes // 8
    ids = [
        *problems.ids("train", "easy")[: count // 4],
        *problems.ids("train", "medium")[: count // 2],
        *problems.ids("train", "hard")[: count - count // 4 - count // 2],
    ]
    specs = [EpisodeSpec(name, seed=k) for name in ids for k in range(8)]
    root_only = params.model_copy(
        update={
            "env": params.env.model_copy(
                update={"limits": params.env.limits.model_copy(update={"max_depth": 0})}
            )
        }
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        local_server(params, data=None) as url,
        local_server(root_only, data=None) as root_url,
        Sessions(url, len(specs)) as sessions,
        Sessions(root_url, len(specs)) as root_sessions,
    ):

        def ours(where: Sessions, flight: int, policy: Callable[..., Any]) -> Callable[[], int]:
            return lambda: sampled(
                play(policy(model, tokenizer, settings), where, specs, sessions=flight)
            )

        context = mean_context(
            play(TransformersPolicy(model, tokenizer, settings), sessions, specs, sessions=64)
        )
        said = play(
            TransformersPolicy(model, tokenizer, settings), root_sessions, specs, sessions=64
        )
        variants: dict[str, Callable[[], int]] = {
            TREES: ours(sessions, 64, TransformersPolicy),
            AT_ONCE: ours(sessions, 64, lambda *of: SentTogether(TransformersPolicy(*of))),
            PER_TURN: ours(sessions, 64, GeneratePolicy),
            ALONE: ours(sessions, 1, TransformersPolicy),
            ROOT: ours(root_sessions, 64, TransformersPolicy),
            TRL: trl_loop(model, tokenizer, root_sessions, specs, settings, folder),
            FREE: ours(root_sessions, 64, lambda *_: Replayed(said)),
        }
        measured: Measured = {name: [] for name in [*variants, BARE]}
        shares = []
        for _ in range(options.repeats):
            for name, variant in variants.items():
                started = time.perf_counter()
                tokens = variant()
                measured[name].append((tokens, time.perf_counter() - started))
            measured[BARE].append(bare_forward(model, 64, context))
            timed = Timed(model, tokenizer, settings)
            started = time.perf_counter()
            play(timed, sessions, specs, sessions=64)
            seconds = time.perf_counter() - started
            shares.append((timed.forward_s / seconds, timed.policy_s / seconds))
            for hook in timed.hooks:
                hook.remove()
    report(measured, len(specs), context, shares)


def report(
    measured: Measured, episodes: int, context: int, shares: Sequence[tuple[float, float]]
) -> None:
    """Print the table and what a rollout's time goes into."""
    print(f"{episodes} episodes of each, median of {len(shares)}; mean context {context} tokens\n")
    print("| variant | episodes/s | tokens/s | this engine is faster by (episodes, tokens) |")
    print("|---|---|---|---|")
    per_s = {
        name: (rate([(episodes, seconds) for _, seconds in runs]), rate(runs))
        for name, runs in measured.items()
    }
    for name, (episodes_s, tokens_s) in per_s.items():
        if name == BARE:
            print(f"| {name}, 64 rows | - | {tokens_s:.0f} | - |")
            continue
        mine = per_s[ROOT if name == TRL else TREES]
        ratio = f"{mine[0] / episodes_s:.1f}, {mine[1] / tokens_s:.1f}"
        own = name in (TREES, ROOT, FREE)
        print(f"| {name} | {episodes_s:.1f} | {tokens_s:.0f} | {'-' if own else ratio} |")
    print(
        f"\nroot only, an engine that wrote its tokens in no time would be "
        f"{per_s[FREE][0] / per_s[TRL][0]:.1f} times as fast as TRL's loop: the rest is the "
        "environment, which both wait for"
    )
    forward, policy = (statistics.median(share) for share in zip(*shares, strict=True))
    print(
        f"\nthe rollout's tokens/s are {per_s[TREES][1] / per_s[BARE][1]:.0%} of the bare forward "
        f"pass; of its seconds {forward:.0%} are forward passes, {policy - forward:.0%} the rest "
        f"of the policy, {1 - policy:.0%} waiting for the environment and the engine itself"
    )


def decoding(model: Any, tokenizer: Any, batch: int, tokens: int) -> None:
    """The sampling loop alone, two turns of a conversation, beside `generate`.

    `generate` has to read the whole conversation again for the second turn, the policy reads what
    is new.
    """
    import random

    settings = GenerationSettings(max_turn_tokens=tokens, batch_frames=batch)
    rng = random.Random(0)
    words = ["Kalvot", "Mirbex", "on", "7"]
    texts = [" ".join(rng.choices(words, k=rng.randint(15, 40))) for _ in range(batch)]
    for warm in (True, False):
        policy = TransformersPolicy(model, tokenizer, settings)
        conversations: list[list[int]] = [[] for _ in texts]
        for number in range(2):
            requests = [
                TurnRequest(
                    key=(place, 0),
                    messages=[Message(role="user", content=text)],
                    depth=0,
                    kind="rlm",
                    first=number == 0,
                    seed=place,
                )
                for place, text in enumerate(texts)
            ]
            start = time.perf_counter()
            replies = policy.act(requests)
            ours = sum(len(r.sampled_ids) for r in replies) / (time.perf_counter() - start)
            prompts = [c + r.prompt_ids for c, r in zip(conversations, replies, strict=True)]
            start = time.perf_counter()
            rows = generate(model, prompts, settings, tokenizer.pad_token_id)
            theirs = sum(map(len, rows)) / (time.perf_counter() - start)
            conversations = [p + r.sampled_ids for p, r in zip(prompts, replies, strict=True)]
            if not warm:
                length = sum(map(len, prompts)) / len(prompts)
                tokens_run, seconds = bare_forward(model, batch, round(length) + tokens // 2)
                bare = tokens_run / seconds
                print(
                    f"| {number + 1} | {length:.0f} | {ours:.0f} | {theirs:.0f} | "
                    f"{ours / theirs:.2f} | {ours / bare:.0%} |"
                )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/base"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=64, help="a multiple of 8")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=60, help="of a turn, sampling loop alone")
    options = parser.parse_args()
    if not options.model.is_dir():
        parser.error(f"no model in {options.model}: run the stage warmstart (or make full) first")

    import torch

    torch.set_num_threads(options.threads)
    params = resolve(overrides=["prepare.synthetic.groups={train: 40, validation: 1, test: 1}"])
    model, tokenizer = load_model(options.model, device="cpu")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {options.threads} thread(s)")
    measure(model, tokenizer, params, options)
    print("\nThe sampling loop alone:\n")
    print("| turn | prompt | tokens/s | `generate` tokens/s | ratio | of the bare forward pass |")
    print("|---|---|---|---|---|---|")
    decoding(model, tokenizer, 64, options.tokens)


if __name__ == "__main__":
    main()
