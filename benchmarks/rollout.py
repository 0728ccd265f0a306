"""Compare the speed of rollouts on the real environment with alternatives.

    python -m benchmarks.rollout [--model DIR] [--threads 1] [--episodes 64] [--repeats 3]

Episodes are whole trees sampled at T = 1 by a taught base, since a random model plays nothing. The
bare forward pass is one cached decoding step of 64 rows at the rollout's mean context, without
sampling, text or environment. Every variant is played once in each repeat, in turn, and medians
are printed. `peers/rollout.py` holds the peers and describes the root-only form.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from agent.policies.base import FrameKey, TurnReply, TurnRequest
from agent.policies.hf_policy import TransformersPolicy, load_model
from agent.rollouts.engine import play
from agent.rollouts.specs import EpisodeSpec
from agent.rollouts.trajectory import Trajectory
from agent.settings import GenerationSettings
from benchmarks import taught
from benchmarks.peers.rollout import GeneratePolicy, trl_loop
from env.client import Sessions
from env.problems.store import ProblemStore
from tasks.config.params import Params
from tasks.deployment.local import local_server

Measured = dict[str, list[tuple[int, float]]]
"""(tokens, seconds) of each repeat, by variant."""

TREES, AT_ONCE = "this engine", "this engine, a round's turns sent together"
ALONE, PER_TURN = "this engine, one episode at a time", "`generate`, batched per turn"
ROOT, TRL = "this engine, root only", "TRL `environment_factory`, root only"
FREE = "the environment alone, root only"
BARE = "bare forward pass"


class SentTogether:
    """The policy without its stream: a round is sent when all its turns are written."""

    def __init__(self, policy: TransformersPolicy) -> None:
        self.act, self.release = policy.act, policy.release


class Replayed:
    """Repeats the turns of recorded episodes, so that only the environment's time remains."""

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
        """Do nothing: this policy keeps no state of a frame."""


class Timed(TransformersPolicy):
    """Counts the seconds of the policy, and those of the model's forward passes."""

    def __init__(self, model: Any, tokenizer: Any, settings: GenerationSettings) -> None:
        super().__init__(model, tokenizer, settings)
        self.policy_s = self.forward_s = 0.0
        self.hooks = [
            model.register_forward_pre_hook(self._count(-1)),
            model.register_forward_hook(self._count(1)),
        ]

    def stream(self, requests: Sequence[TurnRequest]) -> Iterator[tuple[int, TurnReply]]:
        """The replies of the policy, timed."""
        replies = super().stream(requests)
        while True:
            started = time.perf_counter()
            reply = next(replies, None)
            self.policy_s += time.perf_counter() - started
            if reply is None:
                return
            yield reply

    def _count(self, sign: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            self.forward_s += sign * time.perf_counter()

        return hook


def sampled(played: Sequence[Trajectory]) -> int:
    """Number of sampled tokens."""
    frames = (frame for trajectory in played for frame in trajectory.frames.values())
    return sum(len(turn.sampled_ids) for frame in frames for turn in frame.turns)


def mean_context(played: Sequence[Trajectory]) -> int:
    """Mean number of tokens before a sampled one."""
    before = 0
    for frame in (frame for trajectory in played for frame in trajectory.frames.values()):
        read = 0
        for turn in frame.turns:
            read += len(turn.prompt_ids)
            new = len(turn.sampled_ids)
            before += new * read + new * (new - 1) // 2
            read += new
    return round(before / sampled(played))


def bare_forward(model: Any, rows: int, context: int, steps: int = 30) -> tuple[int, float]:
    """(tokens, seconds) of decoding steps without sampling."""
    import torch

    from agent.decoding.row_buffer import CacheShape
    from agent.decoding.sampling import Batch, SampledTurn

    ids = [5] * (context - steps // 2)
    with torch.inference_mode():
        batch = Batch(
            model,
            CacheShape.of(model),
            [
                SampledTurn(place=i, tokens=ids, cached=0, past=None, limit=steps, seed=0)
                for i in range(rows)
            ],
            prefill_tokens=8192,
        )
        started = time.perf_counter()
        for _ in range(steps):
            batch.step()
            for index in range(rows):
                batch.keep(index, [5])
    return rows * steps, time.perf_counter() - started


def rate(runs: Sequence[tuple[float, float]]) -> float:
    """Median rate per second of (count, seconds) pairs."""
    return statistics.median(things / seconds for things, seconds in runs)


def measure(model: Any, tokenizer: Any, params: Params, options: argparse.Namespace) -> None:
    """Play every variant `repeats` times, and print the table."""
    settings = GenerationSettings(batch_frames=64)
    problems = ProblemStore.generate(params.prepare.synthetic)
    count = options.episodes // 8
    ids = [
        *problems.ids("train", "easy")[: count // 4],
        *problems.ids("train", "medium")[: count // 2],
        *problems.ids("train", "hard")[: count - count // 4 - count // 2],
    ]
    specs = [EpisodeSpec(name, seed=k) for name in ids for k in range(8)]
    limits = params.env.limits.model_copy(update={"max_depth": 0})
    alone = params.env.model_copy(update={"limits": limits})
    root_only = params.model_copy(update={"env": alone})
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
    """Print the table, and the shares of a rollout's time."""
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
        "\nRoot only, an engine with free tokens would be "
        f"{per_s[FREE][0] / per_s[TRL][0]:.1f} times as fast as TRL's loop. "
        "The rest is the environment, for which both wait."
    )
    forward, policy = (statistics.median(share) for share in zip(*shares, strict=True))
    print(
        f"\nThe rollout has {per_s[TREES][1] / per_s[BARE][1]:.0%} of the bare forward pass's "
        f"tokens/s. Shares of its time: forward passes {forward:.0%}, rest of the policy "
        f"{policy - forward:.0%}, environment and engine {1 - policy:.0%}."
    )


def main() -> None:
    """Print the table."""
    parser = taught.arguments(__doc__)
    parser.add_argument("--episodes", type=int, default=64, help="a multiple of 8")
    options, params = taught.begin(parser)
    model, tokenizer = load_model(options.model, device="cpu")
    measure(model, tokenizer, params, options)


if __name__ == "__main__":
    main()
